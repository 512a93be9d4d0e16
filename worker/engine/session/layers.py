"""The layers of a cache as what can be kept of them: rows, which can be cut anywhere, or a state, which is whole."""

from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.models import cache as stock

from worker.engine.session.rows import ROW_CLASSES, Rows, fill
from worker.engine.verify.caches import members


def row_layers(layers: Sequence[Any]) -> list[Any]:
    return [layer for layer in members(layers) if isinstance(layer, ROW_CLASSES)]


def state_layers(layers: Sequence[Any]) -> list[Any]:
    return [layer for layer in members(layers) if not isinstance(layer, ROW_CLASSES)]


def restored(
    fresh: Sequence[Any], rows: Iterator[Sequence[Rows]], states: Iterator[Any], length: int, room: int
) -> list[Any]:
    """Layers that hold `length` tokens, lazily, made of `fresh` ones.

    rows: the spans of each row layer. states: what takes the place of each other layer. room: tokens that rows are
    allocated for.
    """
    layers = []
    for layer in fresh:
        if isinstance(layer, stock.CacheList):
            layer.caches = tuple(restored(layer.caches, rows, states, length, room))
        elif isinstance(layer, ROW_CLASSES):
            fill(layer, next(rows), length, room)
        else:
            layer = next(states)
        layers.append(layer)
    return layers


def can_go_back(layers: Sequence[Any]) -> bool:
    """Whether dropping tokens from the end leaves exactly what was there before them."""
    return all(map(_can_go_back, members(layers)))


def _can_go_back(layer: Any) -> bool:
    # Two of mlx-lm's classes call themselves trimmable and are not: of a ChunkedKVCache the front may be gone, and a
    # ConcatenateKVCache appends behind the rows that were dropped.
    if isinstance(layer, stock.ChunkedKVCache):
        return bool(layer.start_position == 0)
    return not isinstance(layer, stock.ConcatenateKVCache) and bool(layer.is_trimmable())
