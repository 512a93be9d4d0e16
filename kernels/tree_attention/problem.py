"""What every variant is given, and what is wrong with a call."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

MOST_NODES = 32
HEAD_SIZES = (64, 80, 96, 128, 256)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)


class TreeAttention(Protocol):
    """A variant of `tree_attention`: the same arguments, checked already."""

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        ancestors: mx.array,
        *,
        scale: float,
        window: int | None = None,
        keep: int = 0,
        sinks: mx.array | None = None,
    ) -> mx.array: ...


def check(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    ancestors: mx.array,
    window: int | None,
    keep: int,
    sinks: mx.array | None,
) -> None:
    """ValueError that names the argument."""
    for name, array in (("queries", queries), ("keys", keys), ("values", values)):
        if array.ndim != 4 or array.shape[0] != 1:
            raise ValueError(f"{name} are {array.shape}; expected [1, heads, rows, head size]")
    _, heads, nodes, size = queries.shape
    _, groups, columns, _ = keys.shape
    if not 1 <= nodes <= MOST_NODES:
        raise ValueError(f"queries have {nodes} nodes; ancestor bits hold 1 to {MOST_NODES}")
    if values.shape[:3] != keys.shape[:3]:
        raise ValueError(f"values are {values.shape} and keys {keys.shape}; they need the same heads and columns")
    if keys.shape[3] != size:
        raise ValueError(f"keys have head size {keys.shape[3]}, queries {size}")
    if heads % groups:
        raise ValueError(f"{heads} query heads cannot share {groups} key heads evenly")
    if columns < nodes:
        raise ValueError(f"keys have {columns} columns; the tree alone has {nodes}: append its rows first")
    if ancestors.shape != (nodes,) or ancestors.dtype != mx.uint32:
        raise ValueError(f"ancestors are {ancestors.dtype} {ancestors.shape}; expected uint32 ({nodes},)")
    if keep < 0 or (window is not None and window <= keep):
        raise ValueError(f"window {window} with keep {keep}: a window is wider than the columns that it always keeps")
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks are {sinks.shape}; expected one for each of the {heads} query heads")


def has_kernel(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether the kernels are written for this head size and dtype."""
    size = queries.shape[3]
    return (
        size in HEAD_SIZES
        and values.shape[3] == size
        and queries.dtype in DTYPES
        and keys.dtype == queries.dtype
        and values.dtype == queries.dtype
    )
