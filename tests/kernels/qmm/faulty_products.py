"""A product that takes its process along for some shapes; a child finds it here by name."""

from __future__ import annotations

import os
from typing import Any

import mlx.core as mx

from kernels.probing import Kernel
from kernels.qmm.reference import Product, reference
from kernels.qmm.shapes import Matrix, complaint

FATAL_COLUMNS = 97


def faulty(*operands: Any) -> mx.array:
    if operands[1].shape[0] == FATAL_COLUMNS:
        os.abort()
    return reference(*operands)


KERNEL: Kernel[Matrix, Product] = Kernel(
    name="faulty", home=__name__, variants={"faulty": lambda _: faulty}, check=complaint, reference=reference
)
