"""The Metal variant: `outputs.metal`, `commit.metal` and `advance.metal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.gated_delta_tree.call import ADVANCE_INPUTS, COMMIT_INPUTS, OUTPUTS_INPUTS, recurrence
from kernels.gated_delta_tree.problem import Recurrence
from kernels.texts import text_beside


def metal_recurrence(factory: Callable[..., Any]) -> Recurrence:
    """factory: `mx.fast.metal_kernel`, or what takes its place."""
    return recurrence(
        outputs=factory(
            name="gated_delta_tree_outputs",
            input_names=list(OUTPUTS_INPUTS),
            output_names=["y"],
            source=text_beside(__file__, "outputs.metal"),
            ensure_row_contiguous=False,
        ),
        commit=factory(
            name="gated_delta_tree_commit",
            input_names=list(COMMIT_INPUTS),
            output_names=["after"],
            source=text_beside(__file__, "commit.metal"),
            ensure_row_contiguous=False,
        ),
        advance=factory(
            name="gated_delta_tree_advance",
            input_names=list(ADVANCE_INPUTS),
            output_names=["y", "after"],
            source=text_beside(__file__, "advance.metal"),
            ensure_row_contiguous=False,
        ),
    )
