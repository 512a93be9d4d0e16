"""What a call consists of: shapes, types, and which kernels they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from kernels.gated_delta_tree.tree import Tree

NODES_AT_MOST = 32
KEY_WIDTHS = (64, 128, 256)
VALUE_COLUMNS = 32
"""A kernel's threadgroup computes so many value columns; the value width is a multiple of it."""
ROW_TYPES = (mx.bfloat16, mx.float16, mx.float32)

TreeOutputs = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array, Tree], mx.array]
StateAfter = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], mx.array]
Advance = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]]


class Recurrence(NamedTuple):
    """One variant of the three operations.

    outputs: (q, k, v, g, beta, state, tree) -> y. commit: (k, v, g, beta, state, path) -> the state after the path.
    advance: (q, k, v, g, beta, state) -> y and the state after all rows, which are a chain. One launch reads the state
    once: for plain decoding, whose token is accepted before it is computed, and for chains of a few tokens.
    """

    outputs: TreeOutputs
    commit: StateAfter
    advance: Advance


class Configuration(NamedTuple):
    """All that decides which compiled kernels a call uses. types: of k, v, g and beta, and of q, which y has too."""

    key_width: int
    value_width: int
    by_channel: bool
    types: tuple[mx.Dtype, mx.Dtype, mx.Dtype, mx.Dtype, mx.Dtype]


def configuration(k: mx.array, v: mx.array, g: mx.array, beta: mx.array, q: mx.array) -> Configuration:
    return Configuration(k.shape[3], v.shape[3], g.ndim == 4, (k.dtype, v.dtype, g.dtype, beta.dtype, q.dtype))


def check_rows(k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, q: mx.array) -> None:
    """ValueError if shapes or types do not belong together; the message names the argument."""
    if k.ndim != 4 or k.shape[0] != 1 or v.ndim != 4:
        raise ValueError(f"k is {k.shape} and v {v.shape}; [1, N, Hk, Dk] and [1, N, Hv, Dv] are needed")
    _, nodes, key_heads, key_width = k.shape
    heads, value_width = v.shape[2:]
    if heads % key_heads:
        raise ValueError(f"v has {heads} heads and k {key_heads}; a multiple is needed")
    gates = (1, nodes, heads, key_width) if g.ndim == 4 else (1, nodes, heads)
    for name, array, shape in (
        ("q", q, k.shape),
        ("v", v, (1, nodes, heads, value_width)),
        ("g", g, gates),
        ("beta", beta, (1, nodes, heads)),
        ("state", state, (1, heads, value_width, key_width)),
    ):
        if array.shape != shape:
            raise ValueError(f"{name} is {array.shape}; with k {k.shape} and v {v.shape}, {shape} is needed")
    if state.dtype != mx.float32:
        raise ValueError(f"state is {state.dtype}; float32 is needed")
    for name, array in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
        if array.dtype not in ROW_TYPES:
            raise ValueError(f"{name} is {array.dtype}; bfloat16, float16 or float32 is needed")
