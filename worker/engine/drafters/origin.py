"""Where a checkpoint comes from, and which model a drafter was made for: its own metadata says so.

That is the card (`base_model`, `base_model_relation`), the config.json, and the hub id, by which drafters are named
after their targets: `z-lab/Qwen3.8-27B-DFlash2` is for Qwen3.8-27B. Ids are compared leniently, by what is left of the
name without words for a packing or a kind of drafter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.engine.card import QUANTIZED, base_models, base_relation, front_matter
from worker.engine.hub_cache import repository_of

_PACKING = re.compile(
    r"\d+(\.\d+)?bits?|i?q\d+(_\w+)*|w\d+a\d+|u?int[248]|(bf|fp?|float)\d+|(mx|nv)fp\d+|mx|mlx|gguf|gptq|awq|dwq|bnb|"
    r"hqq|exl\d|optiq|ud|gs?\d+|quantized|quant|packed",
    re.IGNORECASE,
)
_DRAFTER = re.compile(r"dflash\d*|b\d+|mtp|assistant|speculator|draft(er)?", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class Origin:
    """name: a hub id, or the directory's own name. is_published: whether it is a hub id.

    bases, relation: of the card, hub ids alone; None = not said.
    """

    name: str
    is_published: bool = False
    bases: tuple[str, ...] = ()
    relation: str | None = None

    @property
    def is_conversion(self) -> bool:
        """Whether it has the weights of its bases, at most packed otherwise, as far as its metadata shows.

        Conversion tools leave the relation that the source's own card states, so a name that differs from the base's by
        words for a packing weighs more. A directory's name is its owner's choice: it shows that the weights are others
        only where it says more than the base's name.
        """
        if self.relation == QUANTIZED:
            return True
        own = name_words(self.name)
        if any(own == name_words(base) for base in self.bases):
            return self.relation is None or _has_packing(self.name)
        if self.relation is not None or self.is_published:
            return False
        return not any(set(name_words(base)) <= set(own) for base in self.bases)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model that it is."""
        return (self.name, *(self.bases if self.is_conversion else ()))


@dataclass(frozen=True)
class MadeFor:
    """The models that a drafter was made for. is_stated: by card or config; else only its own name is after theirs."""

    names: tuple[str, ...] = ()
    is_stated: bool = False

    def __bool__(self) -> bool:
        return bool(self.names)

    def __str__(self) -> str:
        return ", ".join(self.names)


def origin_of(directory: Path, notify: Callable[[str], None] = lambda _: None) -> Origin:
    """What the checkpoint in `directory` says of itself. notify: told of a card that cannot be read."""
    facts = front_matter(directory, notify)
    bases = tuple(base for base in base_models(facts) if _HUB_ID.fullmatch(base))
    repository = repository_of(directory)
    return Origin(repository or directory.name, repository is not None, bases, base_relation(facts))


def made_for(origin: Origin, config: Mapping[str, Any]) -> MadeFor:
    """Which models the drafter of this origin and config.json was made for; empty where nothing says so.

    The base that a card names is the target, or the drafter that this one was converted from. One that was trained on
    from another drafter may be for another target.
    """
    stated = [base for base in origin.bases if not _names_drafter(base)]
    stated += _of_config(config)
    if stated:
        return MadeFor(tuple(dict.fromkeys(stated)), is_stated=True)
    if origin.bases and origin.is_conversion:
        named = [base for base in origin.bases if _names_drafter(base)]
    else:
        named = [origin.name] if origin.is_published and _names_drafter(origin.name) else []
    return MadeFor(tuple(dict.fromkeys(_bare(name) for name in named)))


def same_model(one: str, other: str) -> bool:
    """Whether two ids or names are of one model, whatever its packing and whoever published it."""
    return name_words(one) == name_words(other) != ()


def name_words(name: str) -> tuple[str, ...]:
    """What tells a model's name from others, in lower case: `org/Qwen3-4B-MLX-4bit` has ("qwen3", "4b")."""
    return tuple(word.lower() for word in _split(name) if not _PACKING.fullmatch(word) and not _DRAFTER.fullmatch(word))


def _of_config(config: Mapping[str, Any]) -> list[str]:
    """As trainers of drafters write it; a path on their machine says nothing."""
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    stated = [verifier.get("name_or_path") if isinstance(verifier, Mapping) else None]
    stated.append(config.get("target_model_name_or_path"))
    return [name for name in stated if isinstance(name, str) and _HUB_ID.fullmatch(name)]


def _names_drafter(name: str) -> bool:
    return any(_DRAFTER.fullmatch(word) for word in _split(name))


def _has_packing(name: str) -> bool:
    return any(_PACKING.fullmatch(word) for word in _split(name))


def _bare(name: str) -> str:
    """The name without words for packing and drafter, as it is written."""
    return "-".join(word for word in _split(name) if not _PACKING.fullmatch(word) and not _DRAFTER.fullmatch(word))


def _split(name: str) -> list[str]:
    """The words of a name, without the organisation; `4-bit` is one."""
    last = name.rstrip("/").rpartition("/")[2]
    return [word for word in re.sub(r"(\d)-bit", r"\1bit", last, flags=re.IGNORECASE).split("-") if word]
