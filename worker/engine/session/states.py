"""Copies of layers that are nothing but their whole state: sliding windows, recurrent states, and every unknown class.

A copy shares no data with its original: a shared buffer could be larger than what is read of it, and would stay in
memory with the copy. Arrays are evaluated, since a lazy one keeps the graph behind it alive.
"""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as stock

from worker.engine.verify.copies import mapped


def state_bytes(layers: Sequence[Any]) -> int:
    """Bytes that `states_of(layers)` takes."""
    sizes: list[int] = []
    mapped([_without_lost_rows(layer) for layer in layers], lambda array: sizes.append(array.nbytes))
    return sum(sizes)


def states_of(layers: Sequence[Any]) -> list[Any]:
    """A copy of each layer, in arrays of its own."""
    return detached([_without_lost_rows(layer) for layer in layers])


def detached(layers: Sequence[Any]) -> list[Any]:
    """Copies of `layers` in which every array is an evaluated copy."""
    arrays: list[mx.array] = []

    def copy_array(array: mx.array) -> mx.array:
        arrays.append(mx.array(array))
        return arrays[-1]

    twins: list[Any] = mapped(list(layers), copy_array)
    mx.eval(arrays)
    return twins


def _without_lost_rows(layer: Any) -> Any:
    """A sliding window as its next update would cut it.

    A prefill pass of N tokens leaves up to max_size - 1 + N rows behind, of which `keep` first and the last ones, in
    all max_size, can still be read.
    """
    if not isinstance(layer, stock.RotatingKVCache) or layer.keys is None:
        return layer
    rows = layer.keys.shape[-2]
    if layer._idx != rows or rows <= layer.max_size:
        return layer
    window = copy.copy(layer)
    window.keys, window.values = (window._trim(rows - window.max_size, part) for part in (layer.keys, layer.values))
    window._idx = window.max_size
    return window
