"""The CUDA variant, for Hopper GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from kernels.tree_attention.cuda_plan import plan
from kernels.tree_attention.passes import passes
from kernels.tree_attention.plan import Extent, Plan
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.source import texts

DTYPES = (mx.bfloat16, mx.float16)
COMPUTE_CAPABILITY = "sm_90"  # of mx.device_info()["architecture"]; tensor cores of 16 bits and 227 KiB shared memory


def cuda(factory: Callable[..., Any], plan: Callable[[Extent, int], Plan] = plan) -> TreeAttention:
    """For queries, keys and values of DTYPES. factory: `mx.fast.cuda_kernel`, or what takes its place."""
    return passes(factory, texts("cuda", "cu"), plan)
