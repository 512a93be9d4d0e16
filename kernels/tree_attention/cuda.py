"""The CUDA variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.tree_attention.passes import passes
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.source import texts

# Two blocks for each multiprocessor of an H100 or H200.
WANTED_THREADGROUPS = 264


def cuda(factory: Callable[..., Any]) -> TreeAttention:
    """factory: `mx.fast.cuda_kernel`."""
    return passes(factory, texts("cuda", "cu"), wanted_threadgroups=WANTED_THREADGROUPS)
