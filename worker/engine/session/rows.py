"""Row layers: caches with one row per token, which depends on no later token, so any prefix of the rows is valid."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache as stock

Rows = list[mx.array]
"""The buffers of one layer over a span of positions, [..., positions, width] each."""

ROW_CLASSES = (stock.KVCache, stock.QuantizedKVCache, stock.ConcatenateKVCache)


def buffers(layer: Any) -> Rows:
    """The layer's own arrays, with rows behind its offset where it has room; none before its first token."""
    return [] if layer.keys is None else [array for _, array in tree_flatten((layer.keys, layer.values))]


def bytes_of(rows: Rows, count: int) -> int:
    """Bytes that `count` of the rows take."""
    return sum(array.nbytes // array.shape[-2] * count for array in rows)


def cut(rows: Rows, start: int, stop: int) -> Rows:
    """The rows [start, stop), lazily, in buffers of their own: a slice would keep the whole buffer in memory."""
    return [mx.array(array[..., start:stop, :]) for array in rows]


def fill(layer: Any, spans: Sequence[Rows], length: int, room: int) -> None:
    """Give an empty layer the `length` rows of consecutive `spans`, lazily, in buffers with room for `room` rows."""
    joined = [_joined(pieces, length, _capacity(layer, room)) for pieces in zip(*spans, strict=True)]
    if not joined:
        return
    half = len(joined) // 2
    keys, values = joined[:half], joined[half:]
    quantized = isinstance(layer, stock.QuantizedKVCache)
    layer.keys, layer.values = (keys, values) if quantized else (keys[0], values[0])
    layer.offset = length


def _capacity(layer: Any, room: int) -> int:
    """Rows that the layer would allocate for `room` tokens; a ConcatenateKVCache has exactly those it holds."""
    step = getattr(layer, "step", None)
    return 0 if step is None else -(-room // step) * step


def _joined(pieces: Sequence[mx.array], length: int, capacity: int) -> mx.array:
    *outer, _, width = pieces[0].shape
    unused = mx.zeros((*outer, max(0, capacity - length), width), dtype=pieces[0].dtype)
    return mx.concatenate([*pieces, unused], axis=-2)
