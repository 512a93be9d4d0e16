"""The Metal variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.sample.one_threadgroup_per_row import THREADS, Sample, one_threadgroup_per_row
from kernels.texts import text_beside


def metal_sample(factory: Callable[..., Any], threads: int = THREADS) -> Sample:
    """factory: `mx.fast.metal_kernel`, or what takes its place.

    threads: of a row's threadgroup, `THREADS` or `FEWER_THREADS`. MLX raises where a GPU's pipeline, for its registers,
    allows fewer than it is asked for.
    """
    return one_threadgroup_per_row(
        factory, text_beside(__file__, "metal.metal"), text_beside(__file__, "metal_header.metal"), threads
    )
