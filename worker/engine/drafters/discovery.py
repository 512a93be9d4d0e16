"""Drafters' checkpoints that are on this machine already: among the converted models, and in the hub's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from api.errors import ModelError
from worker.engine.drafters.dflash import read_dflash_config
from worker.engine.drafters.metadata import HelperKind, helper_kind, read_config
from worker.engine.drafters.origin import made_for, origin_of
from worker.engine.drafters.pairing import TargetFacts, check_fit, match_of
from worker.engine.hub_cache import cached_models
from worker.engine.models import local_models

_RANKS: dict[HelperKind, int] = {"dflash": 1, "gemma_assistant": 2, "mtp": 3}
_SECOND_DFLASH = 0


@dataclass(frozen=True)
class FoundDrafter:
    """name: a hub id, or the directory. place: where it is, in words. for_models: what its metadata says it is for."""

    name: str
    kind: HelperKind
    directory: Path
    place: str
    for_models: str

    def __str__(self) -> str:
        return f"drafter {self.name} ({self.kind}, found in {self.place})"


def find_drafters(models_dir: Path, target: TargetFacts, notify: Callable[[str], None]) -> list[FoundDrafter]:
    """Those whose metadata names this target and that fit it, the best first; none is fetched, and no weight is read.

    DFlash 2 comes first, then DFlash, an assistant, a head; of one kind, the newest. notify: told of one that names the
    target and cannot be used.
    """
    found = []
    for name, directory, place in _checkpoints(models_dir):
        try:
            config = read_config(directory)
        except ModelError:
            continue  # it may be anything
        kind, drafts_for = helper_kind(config), made_for(origin_of(directory), config)
        if kind is None or match_of(drafts_for, target.origin) != "this":
            continue
        one = FoundDrafter(name, kind, directory, place, str(drafts_for))
        try:
            check_fit(kind, directory, target)
        except ModelError as error:
            notify(f"{one} is left: {error}")
        else:
            found.append(one)
    return sorted(found, key=_preference)


def _checkpoints(models_dir: Path) -> Iterator[tuple[str, Path, str]]:
    """Name, directory and place of whatever checkpoints there are."""
    for directory in local_models(models_dir):
        yield str(directory), directory, str(models_dir)
    for model in cached_models():
        if model.snapshot is not None:
            yield model.repository, model.snapshot, "the hub's cache"


def _preference(found: FoundDrafter) -> tuple[int, float]:
    rank = _RANKS[found.kind]
    if found.kind == "dflash" and read_dflash_config(found.directory).second is not None:
        rank = _SECOND_DFLASH
    return rank, -(found.directory / "config.json").stat().st_mtime
