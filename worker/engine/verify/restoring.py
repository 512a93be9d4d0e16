"""Chain verification over caches that nothing is known of: restore what was before the pass, run the accepted again.

The price is one more, shorter pass after a draft was accepted only in part. Caches that can drop their last tokens do
that instead.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as stock

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import members
from worker.engine.verify.copies import copied

Run = Callable[[mx.array], mx.array]
"""run(tokens [1, N]) appends tokens to the cache in hand and returns their logits."""

# Caches whose trim is exact at any length. A rotating cache forgets: after a pass it may hold too little to go back.
TRIMMED = (stock.KVCache, stock.QuantizedKVCache)


class RestoringPass:
    """One chain pass over `cache`, which `commit` or `abandon` ends."""

    def __init__(self, cache: Sequence[Any]) -> None:
        layers = members(cache)
        self._trimmed = [layer for layer in layers if type(layer) in TRIMMED]
        self._copies = [(layer, copied(layer)) for layer in layers if type(layer) not in TRIMMED]

    def commit(self, tree: TokenTree, path: Sequence[int], run: Run) -> None:
        """Keep the first len(path) nodes of the chain."""
        assert list(path) == list(range(len(path)))
        if len(path) == len(tree):
            return
        if self._copies:
            self.abandon(len(tree))
            run(mx.array([tree.tokens[: len(path)]]))
        else:
            self._trim(len(tree) - len(path))

    def abandon(self, nodes: int) -> None:
        """Put the cache back to what it was before the pass."""
        self._trim(nodes)
        for layer, before in self._copies:
            layer.__dict__ = vars(before)

    def _trim(self, tokens: int) -> None:
        for layer in self._trimmed:
            layer.trim(tokens)
