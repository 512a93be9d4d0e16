"""Products by matrices of the shapes that a model has, tried in a child process before the model's own are tried.

What a variant does with small problems does not tell what it does with larger ones, which are planned otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from kernels.child import Child
from kernels.probing import SECONDS, Kernel, remembered
from kernels.qmm import variants
from kernels.qmm.problems import Weights, packed
from kernels.qmm.reference import Product, reference
from kernels.qmm.variants import TOLERANCES, Configuration

TRIED_ROWS = (8, 16, 24, 32)
"""Kernels are planned by the number of rows."""
RANDOM_ROWS = 1024


class Matrix(NamedTuple):
    """Weights [columns, depth], and the type of x, scales and biases."""

    dtype: mx.Dtype
    group_size: int
    bits: int
    depth: int
    columns: int

    @property
    def configuration(self) -> Configuration:
        return Configuration(self.dtype, self.group_size, self.bits)


def complaints(chosen: Mapping[Matrix, str], folder: Path | None) -> dict[Matrix, str]:
    """What is wrong with those of the matrices that are not to be multiplied by in this process.

    chosen: the variant for each matrix. One child tries all; what `folder` remembers is not tried again.
    """
    found: dict[Matrix, str] = {}
    with Child(SECONDS) as child:
        for matrix, variant in chosen.items():
            wrong = remembered(KERNEL, variant, matrix, folder, child)
            if wrong is not None:
                found[matrix] = wrong
    return found


def complaint(run: Product, matrix: Matrix) -> str | None:
    """What is wrong with products by random weights of this shape; None if nothing is."""
    how = (matrix.group_size, matrix.bits)
    w, scales, biases = _weights(matrix)
    wide_scales, wide_biases = scales.astype(mx.float32), biases.astype(mx.float32)
    for rows in TRIED_ROWS:
        x = mx.random.normal((rows, matrix.depth), key=mx.random.key(rows)).astype(matrix.dtype)
        expected = reference(x.astype(mx.float32), w, wide_scales, wide_biases, *how)
        got = run(x, w, scales, biases, *how).astype(mx.float32)
        error = mx.abs(got - expected).max() / mx.abs(expected).max()
        if not (error <= TOLERANCES[matrix.dtype]).item():
            return f"a product of {rows} rows is off by {error.item():.2g} of its largest value"
    return None


def _weights(matrix: Matrix) -> Weights:
    """Random rows, repeated: what makes them takes several times their memory."""
    dtype, group_size, bits, depth, columns = matrix
    some = packed(min(columns, RANDOM_ROWS), depth, dtype, group_size, bits)
    repeats = -(-columns // RANDOM_ROWS)
    w, scales, biases = (mx.contiguous(mx.concatenate([array] * repeats)[:columns]) for array in some)
    mx.eval(w, scales, biases)
    return w, scales, biases


def _of_shapes(make: Callable[[Configuration], Product]) -> Callable[[Matrix], Product]:
    return lambda matrix: make(matrix.configuration)


KERNEL: Kernel[Matrix, Product] = Kernel(
    name="qmm of a shape",
    home=__name__,
    variants={name: _of_shapes(make) for name, make in variants.KERNEL.variants.items()},
    check=complaint,
    reference=reference,
)
