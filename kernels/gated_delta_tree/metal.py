"""The Metal variant: `outputs.metal`, `commit.metal` and `advance.metal`, with `made.metal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.gated_delta_tree.call import recurrence
from kernels.gated_delta_tree.problem import Recurrence

CONSTANT_BELOW = 8
"""MLX gives a kernel arrays of fewer elements in Metal's constant memory."""


def metal_recurrence(factory: Callable[..., Any]) -> Recurrence:
    """factory: `mx.fast.metal_kernel`, or what takes its place."""
    return recurrence(factory, "metal", CONSTANT_BELOW)
