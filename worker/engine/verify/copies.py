"""Exact copies of caches of any class: what chain verification restores, and what the self-check starts again from."""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx


def copied(layer: Any) -> Any:
    """A cache object with the content of `layer`, which goes on independently.

    Data is shared until one of the two writes: `array[...] = x` exchanges what the Python object refers to, so a new
    object keeps the old content, and MLX copies a buffer that another array refers to before it writes into it.
    """
    twin = copy.copy(layer)
    vars(twin).update({name: _protected(value) for name, value in vars(layer).items()})
    return twin


def copied_all(cache: Sequence[Any]) -> list[Any]:
    return [copied(layer) for layer in cache]


def _protected(value: Any) -> Any:
    if isinstance(value, mx.array):
        return value[...] if value.ndim else value
    if isinstance(value, list | tuple):
        return type(value)(_protected(item) for item in value)
    if isinstance(value, dict):
        return {key: _protected(item) for key, item in value.items()}
    if hasattr(value, "update_and_fetch") or hasattr(value, "is_trimmable"):
        return copied(value)
    return value
