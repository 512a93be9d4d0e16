"""Whether a drafter and a target belong together: what the metadata of both say, without reading a weight.

A checkpoint that does not *fit* cannot draft for the target at all. One that fits can still be a *wrong pairing*: made
for another model, or beside a target that has a multi-token prediction head of its own. Such pairings are exact, and
rarely pay: acceptance falls with every behaviour that was trained into the target and that the drafter has never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from api.errors import ModelError
from worker.engine.drafters.choice import DrafterLoader, Part
from worker.engine.drafters.dflash import read_dflash_config
from worker.engine.drafters.fields import check_same
from worker.engine.drafters.gemma_assistant.config import read_config as read_assistant_config
from worker.engine.drafters.metadata import HelperKind, TargetShape, read_config
from worker.engine.drafters.named_parts import NONE
from worker.engine.drafters.origin import MadeFor, Origin, made_for, origin_of, same_model

Match = Literal["this", "its base", "another", "unknown"]


@dataclass(frozen=True)
class TargetFacts:
    """What a target's files say of it. name: as the user names it. config: of its config.json, empty without one."""

    name: str
    origin: Origin
    config: Mapping[str, Any]
    has_head: bool

    @classmethod
    def of(cls, loader: DrafterLoader) -> TargetFacts:
        """Of the loader's target. A head of its own that cannot be used is none."""
        directory = loader.target.directory
        try:
            has_head = loader.own_head is not None
        except ModelError:
            has_head = False
        config = read_config(directory) if (directory / "config.json").is_file() else {}
        return cls(str(loader.target.spec), origin_of(directory), config, has_head)


@dataclass(frozen=True)
class Pairing:
    """A choice of drafters for one target. word: names it. key: of its contents; another checkpoint, another key.

    objections: sentences that say why it is a wrong pairing.
    """

    word: str
    key: str
    objections: tuple[str, ...] = ()


def pairing_of(
    word: str, parts: Sequence[Part], target: TargetFacts, notify: Callable[[str], None] = lambda _: None
) -> Pairing:
    """notify: told of a card that cannot be read. Raises ModelError for a checkpoint that does not fit the target."""
    objections: list[str] = []
    checkpoints = [(part, part.directory) for part in parts if part.directory is not None]
    for part, directory in checkpoints:
        if part.kind in ("dflash", "gemma_assistant", "mtp"):
            check_fit(part.kind, directory, target)
            drafts_for = made_for(origin_of(directory, notify), read_config(directory))
            objections += _objections(part.name if len(checkpoints) > 1 else "it", drafts_for, target)
    if checkpoints and target.has_head:
        objections.append(f"{target.name} has a multi-token prediction head of its own")
    return Pairing(word, " + ".join(map(str, parts)) or NONE, tuple(objections))


def check_fit(kind: HelperKind, directory: Path, target: TargetFacts) -> None:
    """Raise ModelError, which names the field, when the config.json in `directory` does not fit the target's."""
    path, shape = directory / "config.json", TargetShape.of(target.config)
    if kind == "dflash":
        read_dflash_config(directory, shape.layers).check_pair(path, shape)
    elif kind == "gemma_assistant":
        read_assistant_config(directory).check_pair(path, shape)
    else:
        own = TargetShape.of(read_config(directory))
        sizes = (("hidden_size", own.hidden_size, shape.hidden_size), ("vocab_size", own.vocab_size, shape.vocab_size))
        check_same(path, ((field, found, wanted) for field, found, wanted in sizes if found is not None))


def _objections(drafter: str, drafts_for: MadeFor, target: TargetFacts) -> list[str]:
    """Metadata that says nothing objects to nothing."""
    match = match_of(drafts_for, target.origin)
    if match == "another":
        return [f"{drafter} was made for {drafts_for}, and {_described(target)} is another model"]
    if match == "its base":
        relation = f" ({target.origin.relation})" if target.origin.relation else ""
        return [f"{drafter} was made for {drafts_for}, and {_described(target)} is derived from that{relation}"]
    return []


def match_of(drafts_for: MadeFor, target: Origin) -> Match:
    """Which model a drafter was made for, seen from a target: this one, one that it is derived from, or another one.

    What only a drafter's own name says can be short for something else, and a directory can have any name: that they
    differ shows nothing.
    """

    def names_one_of(models: Sequence[str]) -> bool:
        return any(same_model(name, model) for name in drafts_for.names for model in models)

    if not target.is_conversion and names_one_of(target.bases):
        return "its base"
    if names_one_of(target.names):
        return "this"
    known = drafts_for.is_stated and (target.is_published or target.bases)
    return "another" if known else "unknown"


def _described(target: TargetFacts) -> str:
    """The target's name, and what its card says that it is, where that is not the same."""
    bases = target.origin.bases if target.origin.is_conversion else ()
    others = [base for base in bases if not same_model(base, target.origin.name)]
    return f"{target.name} ({', '.join(others)})" if others else target.name
