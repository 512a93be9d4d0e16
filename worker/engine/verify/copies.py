"""Exact copies of caches of any class: what chain verification restores, and what the self-check starts again from.

In-place updates (`array[...] = x`, `array += x`) exchange what the Python object refers to. So a copy needs array
objects of its own, and those may share their data with the original: MLX copies a buffer that another array refers to
before it writes into it.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_SHARED = (nn.Module, type, mx.Dtype, str, bytes, int, float, complex, type(None))
"""What a copy may refer to as well: parts of the model, and values that nobody can change."""


def copied(layer: Any) -> Any:
    """A cache object with the content of `layer`, which goes on independently. Data is shared until one writes."""
    return mapped(layer, lambda array: array[...])


def copied_all(cache: Sequence[Any]) -> list[Any]:
    return [copied(layer) for layer in cache]


def mapped(value: Any, function: Callable[[mx.array], Any]) -> Any:
    """`value` with `function` of every array in it, in new containers and objects."""
    if isinstance(value, mx.array):
        return function(value)
    if isinstance(value, _SHARED) or callable(value):
        return value
    if type(value) in (list, tuple):
        return type(value)(mapped(item, function) for item in value)
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    if hasattr(value, "__dict__"):
        twin = copy.copy(value)
        vars(twin).update(mapped(vars(value), function))
        return twin
    return copy.deepcopy(value)
