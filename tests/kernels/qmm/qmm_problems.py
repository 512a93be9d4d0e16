"""Quantised products with their values in float64, from the bits of MLX's packing."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.qmm.reference import Product

UNIT_ROUNDOFF = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11, mx.float32: 2.0**-24}


@dataclass(frozen=True)
class Problem:
    """x [rows, depth] and a quantised matrix of `columns` rows."""

    rows: int
    columns: int
    depth: int
    group_size: int
    bits: int
    dtype: mx.Dtype

    def operands(self) -> tuple[mx.array, mx.array, mx.array, mx.array, int, int]:
        random = np.random.default_rng([self.rows, self.columns, self.depth])
        x = mx.array(random.standard_normal((self.rows, self.depth)).astype(np.float32)).astype(self.dtype)
        weight = mx.array(random.standard_normal((self.columns, self.depth)).astype(np.float32)).astype(self.dtype)
        packed = mx.quantize(weight, group_size=self.group_size, bits=self.bits)
        return x, *packed, self.group_size, self.bits

    def run(self, product: Product) -> mx.array:
        return product(*self.operands())


def float64(array: mx.array) -> NDArray[np.float64]:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def dequantised(
    w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int, dtype: mx.Dtype
) -> NDArray[np.float64]:
    """The weights, rounded to dtype, as values."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = ((np.array(w)[:, :, None] >> shifts) & np.uint32(2**bits - 1)).reshape(w.shape[0], -1, group_size)
    weights = values * float64(scales)[:, :, None] + float64(biases)[:, :, None]
    return float64(mx.array(weights.reshape(w.shape[0], -1).astype(np.float32)).astype(dtype))


def assert_one_rounding(
    got: mx.array,
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    of_weights: mx.Dtype | None = None,
) -> None:
    """Off by no more than one rounding to the output's type of a float32 sum, whose own bound is depth roundings.

    of_weights: what the variant rounds weights to, if that is not the output's type.
    """
    weights = dequantised(w, scales, biases, group_size, bits, of_weights or got.dtype)
    exact = float64(x) @ weights.T
    sums = x.shape[1] * UNIT_ROUNDOFF[mx.float32] * (np.abs(float64(x)) @ np.abs(weights).T)
    allowed = UNIT_ROUNDOFF[got.dtype] * (np.abs(exact) + sums) + sums
    error = np.abs(float64(got) - exact)
    assert (error <= allowed).all(), f"off by {(error / allowed).max():.3g} times what is allowed"
