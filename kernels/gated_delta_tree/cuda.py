"""The CUDA variant: `outputs.cu`, `commit.cu` and `advance.cu` with `made.cu`, the algorithms of the Metal files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.gated_delta_tree.call import recurrence
from kernels.gated_delta_tree.problem import Recurrence


def cuda_recurrence(factory: Callable[..., Any]) -> Recurrence:
    """factory: `mx.fast.cuda_kernel`, or what takes its place."""
    return recurrence(factory, "cu")
