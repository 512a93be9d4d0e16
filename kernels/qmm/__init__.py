"""Affine quantised matmul for the few rows of a verification pass, in which every byte of w is read once.

Rows beyond the first then cost arithmetic but no further reads of weights, which are what decoding waits for.
"""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx

from kernels import probing
from kernels.probing import Choice
from kernels.qmm.reference import Product, reference
from kernels.qmm.variants import KERNEL, Configuration

__all__ = [
    "BITS",
    "DTYPES",
    "GROUP_SIZES",
    "KERNEL",
    "MOST_ROWS",
    "Configuration",
    "chosen",
    "quantized_matmul",
    "reference",
]

MOST_ROWS = 32
BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)
LEAST_WORDS = 8


def quantized_matmul(
    x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, *, group_size: int, bits: int
) -> mx.array:
    """x @ dequantise(w).T, where dequantise(w)[n, k] = q[n, k] * scales[n, g] + biases[n, g], g = k // group_size.

    x: [..., M, K] in bfloat16, float16 or float32. w, scales, biases: as `mx.quantize` gives them for weights [N, K],
    mode affine, bits 4 or 8, group_size 32, 64 or 128; N needs no divisor. The result is [..., M, N] in the common
    dtype of x and scales. Kernels round dequantise(w) to that dtype, sum in float32 and round once more.

    Up to 32 rows (all of x's dimensions but the last together) go to the kernel of this machine (`chosen`), more to
    `mx.quantized_matmul`. Make sure that w is contiguous, else MLX copies it each time. ValueError for anything else.
    """
    _check(x, w, scales, biases, group_size, bits)
    rows, depth = math.prod(x.shape[:-1]), x.shape[-1]
    dtype = mx.result_type(x, scales, biases)
    if rows == 0:  # ends the process in mx.quantized_matmul on a CPU (MLX 0.32.4)
        return mx.zeros((*x.shape[:-1], w.shape[0]), dtype)
    if rows > MOST_ROWS or w.size < LEAST_WORDS:
        return mx.quantized_matmul(x, w, scales, biases, transpose=True, group_size=group_size, bits=bits)
    run = chosen(dtype, group_size=group_size, bits=bits).run
    out = run(x.reshape(rows, depth).astype(dtype), w, scales, biases, group_size, bits)
    return out.reshape(*x.shape[:-1], w.shape[0])


def chosen(dtype: mx.Dtype, *, group_size: int, bits: int, folder: Path | None = None) -> Choice[Product]:
    """The variant that this process uses for x of `dtype`, and why not those before it.

    The first call tries them in a child process, unless `folder` has their verdicts; it keeps new ones.
    """
    return probing.chosen(KERNEL, Configuration(dtype, group_size, bits), folder)


def _check(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> None:
    if bits not in BITS or group_size not in GROUP_SIZES:
        raise ValueError(
            f"bits is {bits} and group_size {group_size}; bits 4 or 8 in groups of 32, 64 or 128 are possible here, "
            "others with mx.quantized_matmul"
        )
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype}; bfloat16, float16 or float32 is needed")
    if x.ndim == 0 or w.ndim != 2 or w.dtype != mx.uint32:
        raise ValueError(
            f"x has {x.ndim} dimensions, w is {w.dtype} with {w.ndim}; x [..., K] and w [N, K * bits / 32] in uint32 "
            "are needed, as mx.quantize gives it"
        )
    columns, depth = w.shape[0], w.shape[1] * 32 // bits
    if x.shape[-1] != depth or depth % group_size:
        raise ValueError(f"x has {x.shape[-1]} columns and w {depth}; both need the same multiple of {group_size}")
    groups = (columns, depth // group_size)
    if scales.shape != groups or biases.shape != groups:
        raise ValueError(f"scales are {scales.shape} and biases {biases.shape}; both must be {groups}")
