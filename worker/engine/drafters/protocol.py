"""The protocol that every drafter follows.

Between two passes the target's cache holds the L committed tokens, at positions 0 to L - 1; the pending token, at
position L, is chosen but not in it. A drafter's state is a pure function of the committed tokens and of the hidden
states that the target had for them: nothing that it guessed, and that the target rejected, stays behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import mlx.core as mx

from worker.engine.drafters.batch_memory import Outputs
from worker.engine.drafters.guide import Guide
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps

ALL = -1
"""The bits of every drafter."""


@dataclass(frozen=True)
class DraftLimits:
    """How large a draft of one source may be: `nodes` counts the root, `depth` the tokens after the root."""

    nodes: int
    depth: int


@dataclass
class Asked:
    """Which drafters of a mixture are to draft, by their bits, and what came of it.

    depths: how deep those may draft for whom depth costs something. drafts, spent_ms: the tree of each and the
    milliseconds that it took; a drafter alone leaves them empty.
    """

    bits: int = ALL
    depths: dict[int, int] = field(default_factory=dict)
    drafts: dict[int, TokenTree] = field(default_factory=dict)
    spent_ms: dict[int, float] = field(default_factory=dict)

    def within(self, limits: DraftLimits, bits: int) -> DraftLimits:
        """The limits of the drafter, or drafters, with these bits."""
        return replace(limits, depth=min(limits.depth, self.depths.get(bits, limits.depth)))


@dataclass(frozen=True)
class DraftContext:
    """What a draft may look at.

    layers: the drafter's own cache. target_layers: the target's, to be read only. position: L, of the root. guide:
    ranks candidates as the target will draw. outputs: earlier answers of the request's batch, where they are kept.
    asked: for a mixture.
    """

    position: int = 0
    layers: list[Any] = field(default_factory=list)
    target_layers: list[Any] = field(default_factory=list)
    guide: Guide = field(default_factory=Guide)
    outputs: Outputs | None = None
    asked: Asked = field(default_factory=Asked, compare=False)


class Drafter(Protocol):
    """A source of guesses. `taps`: the hidden states of the target that it reads, None when it reads none."""

    name: str

    @property
    def taps(self) -> Taps | None: ...

    @property
    def levels(self) -> int | None:
        """Passes of its own that a draft takes at most, one for each token of depth; None where depth costs nothing."""

    def new_cache(self) -> list[Any]:
        """Cache layers of its own, with one entry per committed token; none for a drafter that needs only text.

        They are kept, copied, cut and restored together with the target's.
        """

    def prefill(self, prompt: Sequence[int]) -> None:
        """A request begins with `prompt`, the pending token included; what was before is forgotten.

        The layers hold a part of the prompt already when it begins as an earlier one did.
        """

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        """Bring `layers` up to `tokens` [n], which have entered the target's cache since they last were.

        hidden: the rows of `taps`, [n, width]. Comes for every chunk of a prompt, and then not before the layers are
        needed: for a draft, or a snapshot. So these may be the tokens of many rounds, after their `commit`; at most the
        first of the rounds had a draft.
        """

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        """Add guesses below the root of `tree`, each with its confidence; the layers stay as they are."""

    def commit(self, tokens: Sequence[int]) -> None:
        """The next tokens of the text, in order; the last one is the new pending token."""


class TextDrafter:
    """What drafters have in common that need only the text."""

    taps: Taps | None = None
    levels: int | None = None

    def new_cache(self) -> list[Any]:
        return []

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        pass


class NoDrafter(TextDrafter):
    """No guesses: plain decoding."""

    name = "none"

    def prefill(self, prompt: Sequence[int]) -> None:
        pass

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        pass

    def commit(self, tokens: Sequence[int]) -> None:
        pass
