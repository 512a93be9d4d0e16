"""Which drafter an engine takes: the one that was asked for, if it may be used, or the best that `auto` finds.

`auto` is the suffix drafter together with the target's own multi-token prediction head; where it has none, with a
drafter's checkpoint on this machine whose metadata names the target.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import mlx.core as mx

from api.errors import ModelError
from worker.engine.adoption import Adoption
from worker.engine.drafters.choice import DrafterLoader
from worker.engine.drafters.discovery import FoundDrafter, find_drafters
from worker.engine.drafters.named_parts import AUTO, MTP, NONE, SUFFIX
from worker.engine.drafters.pairing import Pairing, TargetFacts, pairing_of
from worker.engine.drafters.protocol import Drafter, NoDrafter

Adopt = Literal["always", "matched", "measured"]
"""When a drafter is used: "always"; when it is "matched", or a wrong pairing that `bench` found worth it here; or only
when it was "measured" to be worth it here, matched or not."""


@dataclass(frozen=True)
class Selected:
    """key: of the drafter's contents, for what is learned and measured of it. weight_bytes: that stay in memory."""

    drafter: Drafter
    key: str
    weight_bytes: int = 0


PLAIN = Selected(NoDrafter(), NONE)

_WITHOUT_HEAD = "drafting without the model's own multi-token prediction head"


@dataclass(frozen=True)
class _Candidate:
    """What `auto` may take. found: the checkpoint in it that nobody has named."""

    pairing: Pairing
    found: FoundDrafter | None = None

    def __str__(self) -> str:
        return f"{SUFFIX}+{self.found.name}" if self.found else self.pairing.word


@dataclass(frozen=True)
class Selection:
    """Selects for the loader's target. notify: told what is used in place of what, and why."""

    loader: DrafterLoader
    adopt: Adopt
    notify: Callable[[str], None] = lambda _: None

    def select(self, choice: str) -> Selected:
        """The drafter of `choice`, or what takes its place where it may not be used.

        Raises ModelError for one that is unknown or broken, or does not fit the target.
        """
        if choice == NONE:
            return PLAIN
        if choice == AUTO:
            return self._auto()
        pairing = self._pairing(choice)
        refusal = self._refusal(pairing, choice)
        if refusal is None:
            return self._load(pairing)
        if self.adopt == "measured":
            self.notify(f"decoding plainly, without drafter {choice}: {refusal}")
            return PLAIN
        self.notify(f"going on as with drafter {AUTO}, without drafter {choice}: {refusal}")
        return self._auto()

    def _auto(self) -> Selected:
        """The best candidate that may be used and that loads."""
        refused: list[str] = []
        for candidate in self._candidates():
            refusal = self._refusal(candidate.pairing, AUTO)
            if refusal is not None:
                refused.append(f"without drafter {candidate}: {refusal}")
                continue
            selected = self._tried(candidate)
            if selected is not None:
                if refused:
                    self.notify(f"drafting with {candidate}, {refused[0]}")
                return selected
        self.notify(f"decoding plainly, {refused[0]}")
        return PLAIN

    def _candidates(self) -> Iterator[_Candidate]:
        if self._has_own_head():
            yield _Candidate(self._pairing(f"{SUFFIX}+{MTP}"))
        else:
            for found in find_drafters(self.loader.data_dir / "models", self._target, self.notify):
                yield _Candidate(self._pairing(f"{SUFFIX}+{found.directory}"), found)
        yield _Candidate(self._pairing(SUFFIX))

    def _has_own_head(self) -> bool:
        """Whether the target carries a head; one that cannot be read is told, and is none."""
        try:
            return self.loader.own_head is not None
        except ModelError as error:
            self.notify(f"{_WITHOUT_HEAD}: {error}")
            return False

    def _tried(self, candidate: _Candidate) -> Selected | None:
        """None, which is told, for what nobody has named and is broken or does not fit into memory."""
        found = candidate.found
        try:
            selected = self._load(candidate.pairing)
        except (ModelError, ValueError, KeyError, RuntimeError, OSError) as error:
            what = f"{found} is left" if found else _WITHOUT_HEAD
            self.notify(f"{what}: {' '.join(str(error).split()) or type(error).__name__}")
            return None
        if found is not None:
            self.notify(f"drafting with {SUFFIX} and {found}, which was made for {found.for_models}")
        return selected

    def _refusal(self, pairing: Pairing, choice: str) -> str | None:
        """Why `pairing` may not be used; None when it may. choice: what `bench` measures it by."""
        if self.adopt == "always" or (self.adopt == "matched" and not pairing.objections):
            return None
        target = self.loader.target
        adoption = Adoption.find(self.loader.data_dir, target, pairing.key)
        if adoption is not None and adoption.is_adopted:
            return None
        measured = "it was not measured here" if adoption is None else str(adoption)
        again = "" if adoption is None else " again"
        command = shlex.join(["cidermill", "bench", "--drafter", choice, "--model", str(target.spec)])
        return "; ".join([*pairing.objections, measured, f"to measure it{again}, run {command}"])

    def _load(self, pairing: Pairing) -> Selected:
        before = mx.get_active_memory()
        drafter = self.loader.load(pairing.word)
        return Selected(drafter, pairing.key, max(0, mx.get_active_memory() - before))

    def _pairing(self, choice: str) -> Pairing:
        return pairing_of(choice, self.loader.parts(choice), self._target, self.notify)

    @cached_property
    def _target(self) -> TargetFacts:
        return TargetFacts.of(self.loader)
