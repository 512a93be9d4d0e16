"""KV caches that know the tree: the mask of a pass, and the commit of its accepted rows.

mlx-lm's own cache objects are adopted by exchanging their class, so models see the caches they made.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from worker.engine.verify.positions import active_pass


class TreeKVCache(KVCache):  # type: ignore[misc]
    """Append-only cache: the N rows of a pass sit at [offset - N, offset) until they are committed."""

    offset: int
    keys: mx.array
    values: mx.array
    fresh_rows: tuple[mx.array, mx.array] | None = None

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        current = active_pass()
        if current is None or current.nodes != N:
            return super().make_mask(N, return_array=return_array, window_size=window_size)
        assert window_size is None, "sliding windows are not verified by tree"
        return current.mask(self.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if active_pass() is not None:
            # The fresh rows let commit write in place; gathering from the buffer would copy all of it.
            self.fresh_rows = (keys, values)
        return super().update_and_fetch(keys, values)

    def commit(self, nodes: int, path: Sequence[int]) -> None:
        """Keep the rows of `path`, of the `nodes` rows that the last pass appended."""
        base = self.offset - nodes
        if list(path) != list(range(len(path))):
            assert self.fresh_rows is not None
            index = mx.array(list(path))
            for buffer, rows in zip((self.keys, self.values), self.fresh_rows, strict=True):
                buffer[..., base : base + len(path), :] = rows[..., index, :]
        self.fresh_rows = None
        self.offset = base + len(path)


def adoptable(cache: Sequence[object]) -> bool:
    """Whether every layer keeps its rows in a plain KVCache."""
    return all(type(layer) in (KVCache, TreeKVCache) for layer in cache)


def adopt(cache: Sequence[Any]) -> list[TreeKVCache]:
    """Turn plain KV caches, as the model made them, into tree caches in place."""
    assert adoptable(cache)
    for layer in cache:
        layer.__class__ = TreeKVCache
    return list(cache)
