"""Which variant multiplies on this machine: the first that runs and agrees with the reference on small problems."""

from __future__ import annotations

import os
import re
from functools import cache, partial
from typing import NamedTuple

import mlx.core as mx

from kernels.devices import gpu_architecture, need
from kernels.probing import Kernel, UnavailableError
from kernels.qmm import cuda, metal
from kernels.qmm.problems import packed, quantised
from kernels.qmm.reference import Product, reference
from kernels.specialised import cuda_kernel, metal_kernel

TOLERANCES = {mx.float32: 1e-3, mx.float16: 1.5e-3, mx.bfloat16: 1e-2}
"""Of the largest value, by x's type, against the reference in float32.

A narrow result has its own rounding (2^-11 or 2^-8) and those of its weights, half of that together. Either side may
multiply in TF32, which is off by up to 4e-4. Products of bfloat16, off by 2e-3 and more, are none of a wider type.
"""
FEW_COLUMNS, MANY_COLUMNS = 40, 8192
DEPTH, LARGE_DEPTH = 4096, 28672
GROUPS = 5


class Configuration(NamedTuple):
    """dtype: of x, scales and biases."""

    dtype: mx.Dtype
    group_size: int
    bits: int


class Shape(NamedTuple):
    """rows: of x. depth: K. columns: N."""

    rows: int
    depth: int
    columns: int


def probed(group_size: int, on_gpu: bool) -> list[Shape]:
    """Each number of row blocks, least, ragged and whole; then a larger K, and on a GPU a larger N with it.

    By both the CUDA kernel is planned: whether blocks divide K, and go over it in phases.
    """
    rows = (1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32)
    whole = (8, 16, 32)
    return [
        *(Shape(count, GROUPS * group_size, FEW_COLUMNS) for count in rows),
        *(Shape(count, DEPTH, FEW_COLUMNS) for count in whole),
        *(Shape(count, LARGE_DEPTH, MANY_COLUMNS) for count in whole if on_gpu),
    ]


def complaint(run: Product, configuration: Configuration) -> str | None:
    """What is wrong with the products of `run` when rows and columns are not whole tiles; None if nothing is."""
    dtype, group_size, bits = configuration
    for shape in probed(group_size, mx.default_device() == mx.gpu):
        rows, depth, columns = shape
        x = mx.random.normal((rows, depth), key=mx.random.key(rows)).astype(dtype)
        weights = quantised if columns == FEW_COLUMNS else packed
        w, scales, biases = weights(columns, depth, dtype, group_size, bits)
        wide_x, wide_scales, wide_biases = (array.astype(mx.float32) for array in (x, scales, biases))
        expected = reference(wide_x, w, wide_scales, wide_biases, group_size, bits)  # a narrow type may be summed in
        for form in (x, x[None]):  # models have a batch of one
            got = run(form, w, scales, biases, group_size, bits).astype(mx.float32).reshape(rows, columns)
            error = mx.abs(got - expected).max() / mx.abs(expected).max()
            if not (error <= TOLERANCES[dtype]).item():
                off = f"off by {error.item():.2g} of its largest value"
                return f"a product of {shape} is {off}, for x of {form.ndim} dimensions"
    return None


def has_tensor_units(architecture: str) -> bool:
    """Of `mx.device_info()["architecture"]`, such as applegpu_g17s: as MLX decides, M5 and later, and later phones."""
    match = re.fullmatch(r"applegpu_g(\d+)([a-z])", architecture)
    return match is not None and int(match[1]) >= (18 if match[2] == "p" else 17)


def has_tensor_operations(release: str) -> bool:
    """Of `os.uname().release`: as MLX decides, from macOS 26.2 on, which is Darwin 25.2."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return match is not None and (int(match[1]), int(match[2])) >= (25, 2)


def where_planned(product: Product) -> Product:
    """The CUDA product, and the stock path where it has no plan, or where scales or biases are of another type than x.

    The kernel reads both as of x's type.
    """

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        of_one_type = scales.dtype == x.dtype == biases.dtype
        if of_one_type and _has_plan(x.shape[-2], x.shape[-1], w.shape[0], group_size, bits):
            return product(x, w, scales, biases, group_size, bits)
        return reference(x, w, scales, biases, group_size, bits)

    return run


@cache
def _has_plan(rows: int, depth: int, columns: int, group_size: int, bits: int) -> bool:
    try:
        cuda.plan(rows, depth, columns, group_size, bits)
    except ValueError:
        return False
    return True


def _metal(name: metal.Name, _: Configuration) -> Product:
    need("Metal")
    architecture = gpu_architecture()
    if name == "tensor" and not has_tensor_units(architecture):
        raise UnavailableError(f"the GPU ({architecture}) has no tensor units; M5 and later have them")
    if name == "tensor" and not has_tensor_operations(os.uname().release):
        raise UnavailableError("macOS has tensor operations for these types from 26.2 on")
    return metal.product(name, metal_kernel)


def _cuda(configuration: Configuration) -> Product:
    need("CUDA", cuda.COMPUTE_CAPABILITY)
    if configuration.dtype not in cuda.DTYPES:
        raise UnavailableError(
            f"x, scales and biases are {configuration.dtype}; the kernel multiplies bfloat16 and float16"
        )
    return where_planned(cuda.product(cuda_kernel))


KERNEL: Kernel[Configuration, Product] = Kernel(
    name="qmm",
    home=__name__,
    variants={"tensor": partial(_metal, "tensor"), "simdgroup": partial(_metal, "simdgroup"), "cuda": _cuda},
    check=complaint,
    reference=reference,
)
