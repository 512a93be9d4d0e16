"""The Metal variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.sample.one_threadgroup_per_row import THREADS, Sample, one_threadgroup_per_row
from kernels.sample.source import source


def metal_sample(factory: Callable[..., Any], threads: int = THREADS) -> Sample:
    """factory: `mx.fast.metal_kernel`, or what takes its place.

    threads: of a row's threadgroup, `THREADS` or `FEWER_THREADS`. MLX raises where a GPU's pipeline, for its registers,
    allows fewer than it is asked for.
    """
    return one_threadgroup_per_row(factory, source("metal.metal"), source("metal_header.metal"), threads)
