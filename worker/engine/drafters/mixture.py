"""The mixture: several drafters' candidates in one tree.

Candidates are merged by path: the same token after the same parent is one node, whoever proposed it. Each node keeps
the bits of its proposers, so that calibration learns what it is worth that two of them agree. Every drafter may fill
the limits of a draft: whose nodes are worth a pass is not for their own confidences to say.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from worker.engine.drafters.protocol import DraftContext, Drafter, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps


class MixtureDrafter:
    """drafters: the first one is bit 1 of a node's sources, the next bit 2, then 4.

    levels: none in common, each drafter has its own.
    """

    levels: int | None = None

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        assert len(drafters) > 1
        self.drafters = list(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)
        tapped = [drafter.taps for drafter in drafters if drafter.taps is not None]
        self._taps = tapped[0].joined(*tapped[1:]) if tapped else None
        self._layer_counts = [len(drafter.new_cache()) for drafter in drafters]

    @property
    def taps(self) -> Taps | None:
        return self._taps

    def new_cache(self) -> list[Any]:
        return [layer for drafter in self.drafters for layer in drafter.new_cache()]

    def prefill(self, prompt: Sequence[int]) -> None:
        for drafter in self.drafters:
            drafter.prefill(prompt)

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        parts = zip(self.drafters, self._hidden_of_each(hidden), self._layers_of_each(layers), strict=True)
        for drafter, rows, own in parts:
            drafter.absorb(tokens, rows, own)

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        """Let those draft that are asked. The layers of the others may be behind."""
        asked = context.asked
        for number, (drafter, own) in enumerate(zip(self.drafters, self._layers_of_each(context.layers), strict=True)):
            bit = 1 << number
            if asked.bits & bit:
                begun = time.perf_counter()
                asked.drafts[bit] = TokenTree(tree.tokens[0])
                drafter.draft(asked.drafts[bit], asked.within(limits, bit), replace(context, layers=own))
                asked.spent_ms[bit] = (time.perf_counter() - begun) * 1000
        tree.merge(asked.drafts)

    def commit(self, tokens: Sequence[int]) -> None:
        for drafter in self.drafters:
            drafter.commit(tokens)

    def _layers_of_each(self, layers: Sequence[Any]) -> list[list[Any]]:
        rest = iter(layers)
        return [[next(rest) for _ in range(count)] for count in self._layer_counts]

    def _hidden_of_each(self, hidden: mx.array | None) -> list[mx.array | None]:
        if hidden is None or self._taps is None:
            return [None] * len(self.drafters)
        width = hidden.shape[-1] // self._taps.states
        rows: list[mx.array | None] = []
        start = 0
        for drafter in self.drafters:
            states = drafter.taps.states if drafter.taps else 0
            rows.append(hidden[:, start * width : (start + states) * width] if states else None)
            start += states
        return rows


def members_of(drafter: Drafter) -> list[Drafter]:
    """The drafters of a mixture, in the order of their bits; a drafter alone is its only one."""
    return drafter.drafters if isinstance(drafter, MixtureDrafter) else [drafter]
