"""The Metal variant: `outputs.metal`, `commit.metal` and `advance.metal`, with `made.metal`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernels.gated_delta_tree.call import ADVANCE_INPUTS, COMMIT_INPUTS, OUTPUTS_INPUTS, Kernel, recurrence
from kernels.gated_delta_tree.problem import Recurrence
from kernels.texts import text_beside


def metal_recurrence(factory: Callable[..., Any]) -> Recurrence:
    """factory: `mx.fast.metal_kernel`, or what takes its place."""
    return recurrence(
        outputs=_kernel(factory, "outputs", OUTPUTS_INPUTS, ["y"]),
        commit=_kernel(factory, "commit", COMMIT_INPUTS, ["after"]),
        advance=_kernel(factory, "advance", ADVANCE_INPUTS, ["y", "after"]),
    )


def _kernel(factory: Callable[..., Any], name: str, input_names: Sequence[str], output_names: Sequence[str]) -> Kernel:
    kernel: Kernel = factory(
        name=f"gated_delta_tree_{name}",
        input_names=list(input_names),
        output_names=list(output_names),
        source=text_beside(__file__, f"{name}.metal"),
        header=text_beside(__file__, "made.metal"),
        ensure_row_contiguous=False,
    )
    return kernel
