"""Copies of layers that are nothing but their whole state: sliding windows, recurrent states, and every unknown class.

A copy shares no array with its original. In-place updates (`array[...] = x`) exchange what the Python object refers to,
so a shared object would change under the copy; a shared buffer could be larger than what is read of it, and would stay
in memory with the copy. Arrays are evaluated, since a lazy one keeps the graph behind it alive.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import cache as stock

_SHARED = (nn.Module, type, mx.Dtype, str, bytes, int, float, complex, type(None))
"""What a copy may refer to as well: parts of the model, and values that nobody can change."""


def state_bytes(layers: Sequence[Any]) -> int:
    """Bytes that `states_of(layers)` takes."""
    sizes: list[int] = []
    _mapped([_without_lost_rows(layer) for layer in layers], lambda array: sizes.append(array.nbytes))
    return sum(sizes)


def states_of(layers: Sequence[Any]) -> list[Any]:
    """A copy of each layer, in arrays of its own."""
    return copied([_without_lost_rows(layer) for layer in layers])


def copied(layers: Sequence[Any]) -> list[Any]:
    """Copies of `layers` in which every array is an evaluated copy."""
    arrays: list[mx.array] = []

    def copy_array(array: mx.array) -> mx.array:
        arrays.append(mx.array(array))
        return arrays[-1]

    twins: list[Any] = _mapped(list(layers), copy_array)
    mx.eval(arrays)
    return twins


def _mapped(value: Any, function: Callable[[mx.array], Any]) -> Any:
    """`value` with `function` of every array in it, in new containers and objects."""
    if isinstance(value, mx.array):
        return function(value)
    if isinstance(value, _SHARED) or callable(value):
        return value
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, function) for item in value)
    if type(value) is dict:
        return {key: _mapped(item, function) for key, item in value.items()}
    if hasattr(value, "__dict__"):
        twin = copy.copy(value)
        vars(twin).update(_mapped(vars(value), function))
        return twin
    return copy.deepcopy(value)


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
