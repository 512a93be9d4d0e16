"""The product in plain MLX, on any device and for any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

Product = Callable[[mx.array, mx.array, mx.array, mx.array, int, int], mx.array]
"""(x [..., rows, K], w [N, K * bits / 32], scales [N, K / group_size], biases, group_size, bits) -> [..., rows, N].

Of the type of x, whose dimensions before the rows are all 1.
"""


def reference(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
    """y[m, n] = sum over k of x[m, k] * (q[n, k] * scales[n, k // group_size] + biases[n, k // group_size])."""
    return mx.quantized_matmul(x, w, scales, biases, transpose=True, group_size=group_size, bits=bits)
