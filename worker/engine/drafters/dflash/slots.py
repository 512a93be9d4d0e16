"""What may stand in the slots of a block: independent odds (DFlash), or a lattice of candidates (DFlash 2)."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from worker.engine.drafters.dflash.best_first import Candidates
from worker.engine.drafters.next_tokens import NextTokens, shortlist
from worker.engine.sampling import Tokens

Rank = Callable[[NextTokens, int], Candidates]
"""rank(expected, depth): the likeliest draws at a depth, best first."""


class IndependentSlots:
    """DFlash: the odds of a slot, whatever stands before it.

    logits: [slots, columns], float32; ids: of the columns, None for the whole vocabulary.
    """

    def __init__(self, logits: mx.array, ids: Tokens | None, rank: Rank) -> None:
        self._rank = rank
        self._expected = [NextTokens(row.logprobs, _tokens_of(row.ids, ids)) for row in shortlist(logits)]
        self._ranked: dict[int, Candidates] = {}

    def following(self, token: int, depth: int) -> Candidates:
        """The candidates at `depth` tokens after the root."""
        if depth not in self._ranked:
            self._ranked[depth] = self._rank(self._expected[depth - 1], depth)
        return self._ranked[depth]


class Lattice:
    """DFlash 2: the odds of a slot's candidates, given which candidate of the slot before stands there.

    tokens: [slots, K], ascending. scores: [slots, K, K], of each (last axis) after each of the slot before.
    """

    def __init__(self, tokens: mx.array, scores: mx.array, rank: Rank) -> None:
        self._rank = rank
        logprobs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        mx.eval(tokens, logprobs)
        self._tokens, self._logprobs = np.array(tokens).astype(np.int64), np.array(logprobs)

    def following(self, token: int, depth: int) -> Candidates:
        """The candidates at `depth` tokens after the root, after `token`."""
        slot = depth - 1
        before = 0 if slot == 0 else int(np.searchsorted(self._tokens[slot - 1], token))
        return self._rank(NextTokens(self._logprobs[slot, before], self._tokens[slot]), depth)


def _tokens_of(columns: Tokens | None, ids: Tokens | None) -> Tokens | None:
    """The tokens that `columns` stand for; None for all of them."""
    return ids if columns is None else columns if ids is None else ids[columns]
