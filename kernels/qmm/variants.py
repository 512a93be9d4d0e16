"""Which variant multiplies on this machine: the first that runs and agrees with the reference on small problems."""

from __future__ import annotations

import re
from functools import cache, partial

import mlx.core as mx

from kernels.probing import Choice, UnavailableError, Variant, choose
from kernels.qmm.metal import Name, product
from kernels.qmm.reference import Product, reference

TOLERANCE = 0.02  # of the largest value; the reference does not round weights, a wrong layout is off by about 1
PROBED_ROWS = (1, 8, 11, 16, 21, 24, 29, 32)  # each number of row blocks, whole and ragged
PROBED_COLUMNS = 40
PROBED_GROUPS = 5


@cache
def chosen(device: mx.DeviceType, dtype: mx.Dtype, group_size: int, bits: int) -> Choice[Product]:
    """Found out once per process and configuration. device: the type of `mx.default_device()`."""
    variants = [
        Variant("tensor", partial(_metal, "tensor", device)),
        Variant("simdgroup", partial(_metal, "simdgroup", device)),
    ]
    return choose(variants, partial(complaint, dtype, group_size, bits), Variant("reference", lambda: reference))


def complaint(dtype: mx.Dtype, group_size: int, bits: int, run: Product) -> str | None:
    """What is wrong with the products of `run` when rows and columns are not whole tiles; None if nothing is."""
    for rows in PROBED_ROWS:
        depth = PROBED_GROUPS * group_size
        x = mx.random.normal((rows, depth), key=mx.random.key(rows)).astype(dtype)
        weight = mx.random.normal((PROBED_COLUMNS, depth), key=mx.random.key(0)).astype(dtype)
        w, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
        wide_x, wide_scales, wide_biases = (array.astype(mx.float32) for array in (x, scales, biases))
        expected = reference(wide_x, w, wide_scales, wide_biases, group_size, bits)  # a narrow type may be summed in
        got = run(x, w, scales, biases, group_size, bits).astype(mx.float32)
        error = mx.abs(got - expected).max() / mx.abs(expected).max()
        if not (error <= TOLERANCE).item():
            return f"a product with {rows} rows is off by {error.item():.2g} of its largest value"
    return None


def has_tensor_units(architecture: str) -> bool:
    """Of `mx.device_info()["architecture"]`, such as applegpu_g17s: as MLX decides, M5 and later, and later phones."""
    match = re.fullmatch(r"applegpu_g(\d+)([a-z])", architecture)
    return match is not None and int(match[1]) >= (18 if match[2] == "p" else 17)


def _metal(name: Name, device: mx.DeviceType) -> Product:
    if not mx.metal.is_available():
        raise UnavailableError("this machine has no Metal")
    if device != mx.DeviceType.gpu:
        raise UnavailableError("MLX's default device is not the GPU")
    architecture = str(mx.device_info()["architecture"])
    if name == "tensor" and not has_tensor_units(architecture):
        raise UnavailableError(f"the GPU ({architecture}) has no tensor units; M5 and later have them")
    return product(name, mx.fast.metal_kernel)
