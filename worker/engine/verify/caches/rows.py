"""Append-only caches: the N rows of a pass sit at the end until they are committed."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as stock

from worker.engine.verify.accepted import index_of
from worker.engine.verify.tree_pass import active_pass


class _TreeRows:
    """What append-only caches have in common; mixed into one of mlx-lm's classes."""

    offset: int
    fresh_rows: tuple[mx.array, mx.array] | None = None

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        current = active_pass()
        causal = current is not None and current.is_chain and window_size is None and not return_array
        if current is None or causal or current.nodes != N:
            stock_mask = super().make_mask  # type: ignore[misc]
            return stock_mask(N, return_array=return_array, window_size=window_size)
        return current.mask(self.offset, window=window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if active_pass() is not None:
            # The fresh rows let commit write in place; gathering from the buffer would copy all of it.
            self.fresh_rows = (keys, values)
        return super().update_and_fetch(keys, values)  # type: ignore[misc]

    def commit(self, nodes: int, path: Sequence[int]) -> None:
        if self.fresh_rows is None:  # no layer of this model uses the cache
            return
        base = self.offset - nodes
        if list(path) != list(range(len(path))):
            keys, values = (mx.take(rows, index_of(path), axis=-2) for rows in self.fresh_rows)
            self._write(base - self._first, keys, values)
        self.fresh_rows = None
        self.offset = base + len(path)

    def abandon(self, nodes: int) -> None:
        if self.fresh_rows is not None:
            self.fresh_rows = None
            self.offset -= nodes

    @property
    def _first(self) -> int:
        """Position of the buffer's first row."""
        return 0

    def _write(self, start: int, keys: mx.array, values: mx.array) -> None:
        """Put rows into the buffer from row `start` on."""
        for buffer, rows in ((self.keys, keys), (self.values, values)):  # type: ignore[attr-defined]
            if rows.shape[-1]:  # latent attention keeps values of no width
                buffer[..., start : start + rows.shape[-2], :] = rows


class TreeKVCache(_TreeRows, stock.KVCache):  # type: ignore[misc]
    """Keys and values of every token."""


class TreeConcatenateKVCache(_TreeRows, stock.ConcatenateKVCache):  # type: ignore[misc]
    """As KVCache, but the buffer has exactly the rows it holds, and an update appends to all of them."""

    keys: mx.array | None
    values: mx.array | None

    def commit(self, nodes: int, path: Sequence[int]) -> None:
        super().commit(nodes, path)
        self._cut()

    def abandon(self, nodes: int) -> None:
        super().abandon(nodes)
        self._cut()

    def _cut(self) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[..., : self.offset, :], self.values[..., : self.offset, :]


class TreeChunkedKVCache(_TreeRows, stock.ChunkedKVCache):  # type: ignore[misc]
    """The rows of the current attention chunk; the model makes the mask by itself."""

    start_position: int

    @property
    def _first(self) -> int:
        return self.start_position


class TreeQuantizedKVCache(_TreeRows, stock.QuantizedKVCache):  # type: ignore[misc]
    """Quantized keys and values; a row's bits depend on that row alone, so the accepted rows are quantized again."""

    group_size: int
    bits: int

    def _write(self, start: int, keys: mx.array, values: mx.array) -> None:
        for buffers, rows in ((self.keys, keys), (self.values, values)):
            packed = mx.quantize(rows, group_size=self.group_size, bits=self.bits)
            for buffer, piece in zip(buffers, packed, strict=True):
                buffer[..., start : start + rows.shape[-2], :] = piece
