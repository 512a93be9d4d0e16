"""Random weights, as a probe and a timing need them."""

from __future__ import annotations

import mlx.core as mx

Weights = tuple[mx.array, mx.array, mx.array]
"""w, scales and biases, as `mx.quantize` gives them."""


def quantised(columns: int, depth: int, dtype: mx.Dtype, group_size: int, bits: int) -> Weights:
    """Normal weights, quantised: some scales are negative."""
    weight = mx.random.normal((columns, depth), key=mx.random.key(0)).astype(dtype)
    w, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    return w, scales, biases


def packed(columns: int, depth: int, dtype: mx.Dtype, group_size: int, bits: int, seed: int = 0) -> Weights:
    """Weights that are spread about zero, without the memory of the wide ones."""
    keys = mx.random.split(mx.random.key(seed), 3)
    scales = mx.random.uniform(0.001, 0.01, (columns, depth // group_size), key=keys[0]).astype(dtype)
    low, high = (mx.random.randint(0, 2**16, (columns, depth * bits // 32), mx.uint32, key=key) for key in keys[1:])
    return high << 16 | low, scales, (-(2**bits - 1) / 2 * scales).astype(dtype)
