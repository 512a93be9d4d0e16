"""Recurrent state: one array per slot that folds in every token, so nothing in it can be taken back."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx_lm.models import cache as stock

from worker.engine.verify.tree_pass import active_pass

Replay = Callable[["TreeArraysCache", Sequence[int]], None]
"""replay(cache, path) advances the cache's state by the accepted nodes."""


class TreeArraysCache(stock.ArraysCache):  # type: ignore[misc]
    """Keeps the state of the prefix through a pass: writes are dropped.

    The layers that own the state record how to replay the accepted path into it. Nothing is copied, and a rejected or
    failed pass leaves the state untouched.
    """

    cache: list[mx.array | None]
    replays: list[Replay] | None = None

    def __setitem__(self, slot: int, value: mx.array) -> None:
        if active_pass() is None:
            self.cache[slot] = value

    def record(self, replay: Replay) -> None:
        """Note, within a pass, how its accepted path gets into the state."""
        self.replays = [*(self.replays or []), replay]

    def commit(self, nodes: int, path: Sequence[int]) -> None:
        assert self.replays, "a layer with recurrent state recorded nothing"
        replays = self.replays
        self.abandon(nodes)
        for replay in replays:
            replay(self, path)

    def abandon(self, nodes: int) -> None:
        self.replays = None
