"""What a call consists of: shapes, types, and which kernel they need."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import mlx.core as mx

DTYPES = (mx.bfloat16, mx.float16, mx.float32)
USUAL_SIZE = 4
"""K of all hybrid families that mlx-lm has."""


class TreeConvolution(Protocol):
    """One variant."""

    def __call__(self, x: mx.array, weight: mx.array, windows: mx.array, bias: mx.array | None = None) -> mx.array:
        """The rows [1, N, C] of the N nodes, each of them convolved with the K - 1 rows before it on its path.

        x: [1, R, C], rows before the tree and rows of nodes. weight: [C, K, 1], as nn.Conv1d has it with a group for
        each channel. windows: [N, K] int32, the rows of x that a node sees, its own last. bias: [C]. All but the
        windows are of one type; sums are float32. Windows are not checked to be rows that exist.
        """


class Configuration(NamedTuple):
    """dtype: of x, weight and bias. size: K."""

    dtype: mx.Dtype
    size: int
