"""The quantised product by the Metal texts in the emulator; a child finds it here by name."""

from __future__ import annotations

from kernels.host import metal_kernel
from kernels.probing import Kernel
from kernels.qmm import Configuration, metal, variants
from kernels.qmm.reference import Product, reference
from worker.kernel_problems import Operation, products

KERNEL: Kernel[Configuration, Product] = Kernel(
    name="qmm",
    home=__name__,
    variants={
        "tensor": lambda _: metal.product("tensor", metal_kernel),
        "simdgroup": lambda _: metal.product("simdgroup", metal_kernel),
    },
    check=variants.complaint,
    reference=reference,
)


def small_products(configuration: Configuration) -> list[Operation[Product]]:
    return products(configuration, depth=128, columns=64, total_bytes=0)
