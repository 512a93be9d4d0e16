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

NORM_EPS = 1e-6
"""What mlx-lm adds to the square of a key's length."""


class Rows(NamedTuple):
    """What a call has of its N nodes; arrays in any strides.

    q, k: [1, N, Hk, Dk], each head serving Hv / Hk neighbouring value heads. v: [1, N, Hv, Dv]. g: [1, N, Hv], or
    [1, N, Hv, Dk] with a gate per key channel; factors in [0, 1], not logarithms. beta: [1, N, Hv].

    gate_parameters: A_log and dt_bias, [Hv] each, if g and beta are what gates of heads and strengths are still to be
    made of, the a and b of mlx-lm: g = exp(-exp(A_log) log(1 + exp(a + dt_bias))), beta = 1 / (1 + exp(-b)).
    normed: if not, keys and queries are still to be made short: k / sqrt(k . k + NORM_EPS), and
    q / sqrt(Dk (q . q + NORM_EPS)).
    """

    q: mx.array
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array
    gate_parameters: tuple[mx.array, mx.array] | None = None
    normed: bool = True


TreeOutputs = Callable[[Rows, mx.array, Tree], mx.array]
StateAfter = Callable[[Rows, mx.array, mx.array], mx.array]
Advance = Callable[[Rows, mx.array], tuple[mx.array, mx.array]]


class Recurrence(NamedTuple):
    """One variant of the three operations.

    outputs: (rows, state, tree) -> y [1, N, Hv, Dv] in the type of q. commit: (rows, state, path) -> the state after
    the path, which is [T] int32. advance: (rows, state) -> y and the state after all rows, which are a chain.
    state: [1, Hv, Dv, Dk] in float32, never changed; it begins at a multiple of 16 bytes. Advance reads it
    once: for plain decoding, whose token is accepted before it is computed, and for chains of a few tokens.
    """

    outputs: TreeOutputs
    commit: StateAfter
    advance: Advance


class Configuration(NamedTuple):
    """All that decides which compiled kernels a call uses. types: of k, v, g and beta, and of q, which y has too.

    parameter_types: of the gate parameters, where there are any. normed: as of rows.
    """

    key_width: int
    value_width: int
    by_channel: bool
    types: tuple[mx.Dtype, mx.Dtype, mx.Dtype, mx.Dtype, mx.Dtype]
    parameter_types: tuple[mx.Dtype, mx.Dtype] | None = None
    normed: bool = True


def configuration(rows: Rows) -> Configuration:
    q, k, v, g, beta, parameters, normed = rows
    types = (k.dtype, v.dtype, g.dtype, beta.dtype, q.dtype)
    parameter_types = None if parameters is None else (parameters[0].dtype, parameters[1].dtype)
    return Configuration(k.shape[3], v.shape[3], g.ndim == 4, types, parameter_types, normed)


def check_rows(rows: Rows, state: mx.array) -> None:
    """ValueError if shapes or types do not belong together; the message names the argument."""
    q, k, v, g, beta, parameters, _ = rows
    if k.ndim != 4 or k.shape[0] != 1 or v.ndim != 4:
        raise ValueError(f"k is {k.shape} and v {v.shape}; [1, N, Hk, Dk] and [1, N, Hv, Dv] are needed")
    _, nodes, key_heads, key_width = k.shape
    heads, value_width = v.shape[2:]
    if heads % key_heads:
        raise ValueError(f"v has {heads} heads and k {key_heads}; a multiple is needed")
    gates = (1, nodes, heads, key_width) if g.ndim == 4 and parameters is None else (1, nodes, heads)
    for name, array, shape in (
        ("q", q, k.shape),
        ("v", v, (1, nodes, heads, value_width)),
        ("g", g, gates),
        ("beta", beta, (1, nodes, heads)),
        ("state", state, (1, heads, value_width, key_width)),
        *((name, array, (heads,)) for name, array in zip(("A_log", "dt_bias"), parameters or (), strict=False)),
    ):
        if array.shape != shape:
            raise ValueError(f"{name} is {array.shape}; with k {k.shape} and v {v.shape}, {shape} is needed")
    if state.dtype != mx.float32:
        raise ValueError(f"state is {state.dtype}; float32 is needed")
    parameter_names = zip(("A_log", "dt_bias"), parameters or (), strict=False)
    for name, array in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta), *parameter_names):
        if array.dtype not in ROW_TYPES:
            raise ValueError(f"{name} is {array.dtype}; bfloat16, float16 or float32 is needed")
