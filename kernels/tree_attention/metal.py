"""The Metal variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.tree_attention.metal_plan import plan
from kernels.tree_attention.passes import passes
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.source import texts


def metal(factory: Callable[..., Any]) -> TreeAttention:
    """factory: `mx.fast.metal_kernel`, or what takes its place."""
    return passes(factory, texts("metal", "metal"), plan)
