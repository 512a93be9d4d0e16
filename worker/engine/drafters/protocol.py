"""The protocol that every drafter follows.

A drafter's state is a pure function of the tokens it was given by `prefill` and `commit`: nothing that it guessed, and
that the target rejected, stays behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.engine.tree import TokenTree


@dataclass(frozen=True)
class DraftLimits:
    """How large a draft may be: `nodes` counts the root, `depth` the tokens after the root."""

    nodes: int
    depth: int


class Drafter(Protocol):
    name: str

    def prefill(self, tokens: Sequence[int]) -> None:
        """Start a request with its prompt, the pending token included; what was before is forgotten."""

    def draft(self, tree: TokenTree, limits: DraftLimits) -> None:
        """Add guesses below the root of `tree`, each with its confidence."""

    def commit(self, tokens: Sequence[int]) -> None:
        """The next tokens of the text, in order; the last one is the new pending token."""

    def snapshot(self) -> object:
        """The present state, to return to with `restore`."""

    def restore(self, snapshot: object) -> None:
        """Return to a state that `snapshot` gave since the last `prefill`."""


class NoDrafter:
    """No guesses: plain decoding."""

    name = "none"

    def prefill(self, tokens: Sequence[int]) -> None:
        pass

    def draft(self, tree: TokenTree, limits: DraftLimits) -> None:
        pass

    def commit(self, tokens: Sequence[int]) -> None:
        pass

    def snapshot(self) -> object:
        return None

    def restore(self, snapshot: object) -> None:
        pass
