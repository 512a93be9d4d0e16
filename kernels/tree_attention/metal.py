"""The Metal variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.tree_attention.passes import passes
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.source import texts

# Apple GPUs have 8 to 80 cores, each with room for a few threadgroups of this size.
WANTED_THREADGROUPS = 128


def metal(factory: Callable[..., Any]) -> TreeAttention:
    """factory: `mx.fast.metal_kernel`, or what takes its place."""
    return passes(factory, texts("metal", "metal"), wanted_threadgroups=WANTED_THREADGROUPS)
