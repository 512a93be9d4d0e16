"""Sliding windows: a cache that keeps only the last rows, and forgets as it goes on."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as stock

from worker.engine.verify.tree_pass import active_pass


class TreeRotatingKVCache(stock.RotatingKVCache):  # type: ignore[misc]
    """A pass brings the rows into temporal order and appends its N; the commit keeps the retained and the accepted.

    Upstream's update retains R = min(stored, max_size - 1) rows before it appends several: every node then finds all
    that its window can reach.
    """

    offset: int
    keep: int
    max_size: int
    keys: mx.array | None
    values: mx.array | None
    _idx: int
    _before: tuple[Any, ...] | None = None
    _retained = 0

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        current = active_pass()
        if current is None or current.nodes != N:
            return super().make_mask(N, window_size=window_size, return_array=return_array)
        # What one-token decoding sees. Upstream's own mask for several tokens is wider when a model asks for a larger
        # window than its buffer.
        window = min(window_size or self.max_size, self.max_size)
        return current.mask(self.offset, self._rows_kept(), window, self.keep)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        current = active_pass()
        if current is None:
            return super().update_and_fetch(keys, values)
        self._retained = self._rows_kept()
        self._before = (self.keys, self.values, self.offset, self._idx)
        fetched = self._update_concat(keys, values)
        assert fetched[0].shape[2] == self._retained + current.nodes
        return fetched

    def commit(self, nodes: int, path: Sequence[int]) -> None:
        if self._before is not None and len(path) < nodes:
            assert self.keys is not None
            assert self.values is not None
            end = self._retained + len(path)
            if list(path) == list(range(len(path))):
                self.keys, self.values = (rows[..., :end, :] for rows in (self.keys, self.values))
            else:
                index = mx.array([*range(self._retained), *(self._retained + node for node in path)])
                self.keys, self.values = (rows[..., index, :] for rows in (self.keys, self.values))
            self.offset += len(path) - nodes
            self._idx = end
        self._before = None

    def abandon(self, nodes: int) -> None:
        if self._before is not None:
            self.keys, self.values, self.offset, self._idx = self._before
            self._before = None

    def _rows_kept(self) -> int:
        """Rows that the next update of several tokens retains."""
        if self.keys is None:
            return 0
        size = int(self.keys.shape[2])
        rotated = self._idx == size or self._idx < self.offset
        stored = min(size if rotated else self._idx, self.offset)
        return min(stored, self.max_size - 1)
