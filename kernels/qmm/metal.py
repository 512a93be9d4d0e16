"""The Metal variants: how `tensor.metal` and `simdgroup.metal` are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import mlx.core as mx

from kernels.qmm.reference import Product
from kernels.texts import text_beside

Name = Literal["tensor", "simdgroup"]
COLUMNS_PER_THREADGROUP = 32
THREADS_PER_THREADGROUP = 128


def product(name: Name, factory: Callable[..., Any]) -> Product:
    """The variant as a function of 1 to 32 rows of x.

    factory: `mx.fast.metal_kernel`, or what takes its place. w needs 8 words or more (MLX hands smaller inputs over in
    another address space). w and x begin at multiples of 16 bytes.
    """
    kernel = factory(
        name=f"qmm_{name}",
        input_names=["x", "w", "scales", "biases"],
        output_names=["out"],
        source=text_beside(__file__, f"{name}.metal"),
        header=text_beside(__file__, f"{name}_header.metal"),
    )

    @cache
    def launch(shape: tuple[int, ...], dtype: mx.Dtype, columns: int, group_size: int, bits: int) -> dict[str, Any]:
        threadgroups = -(-columns // COLUMNS_PER_THREADGROUP)
        return {
            "template": [("T", dtype), ("BITS", bits), ("GROUP", group_size), _template_of_rows(name, shape[-2])],
            "grid": (threadgroups * THREADS_PER_THREADGROUP, 1, 1),
            "threadgroup": (THREADS_PER_THREADGROUP, 1, 1),
            "output_shapes": [(*shape[:-1], columns)],
            "output_dtypes": [dtype],
        }

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        arguments = launch(x.shape, x.dtype, w.shape[0], group_size, bits)
        out: list[mx.array] = kernel(inputs=[x, w, scales, biases], **arguments)
        return out[0]

    return run


def _template_of_rows(name: Name, rows: int) -> tuple[str, int]:
    """The template value that depends on the number of rows: 2 kernels for all numbers, or 4."""
    return ("ROWS", 16 if rows <= 16 else 32) if name == "tensor" else ("BLOCKS", -(-rows // 8))
