"""The CUDA variant, the Metal kernel's twin: one block per row, and the same integers all the way to the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.sample.one_threadgroup_per_row import Sample, one_threadgroup_per_row
from kernels.texts import text_beside


def cuda_sample(factory: Callable[..., Any]) -> Sample:
    """factory: `mx.fast.cuda_kernel`."""
    return one_threadgroup_per_row(factory, text_beside(__file__, "cuda.cu"), text_beside(__file__, "cuda_header.cu"))
