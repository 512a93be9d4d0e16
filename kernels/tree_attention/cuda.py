"""The CUDA variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.source import source
from kernels.tree_attention.two_passes import two_passes

# Two blocks for each multiprocessor of an H100 or H200.
WANTED_THREADGROUPS = 264


def cuda(factory: Callable[..., Any]) -> TreeAttention:
    """factory: `mx.fast.cuda_kernel`."""
    return two_passes(
        factory,
        split=source("cuda_split.cu"),
        merge=source("cuda_merge.cu"),
        header=source("cuda_header.cu"),
        wanted_threadgroups=WANTED_THREADGROUPS,
    )
