"""The Metal variant: `outputs.metal`, `commit.metal` and `advance.metal`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels.gated_delta_tree.call import ADVANCE_INPUTS, COMMIT_INPUTS, OUTPUTS_INPUTS, recurrence
from kernels.gated_delta_tree.problem import Recurrence


def metal_recurrence(factory: Callable[..., Any]) -> Recurrence:
    """factory: `mx.fast.metal_kernel`, or what takes its place."""
    folder = Path(__file__).parent
    return recurrence(
        outputs=factory(
            name="gated_delta_tree_outputs",
            input_names=list(OUTPUTS_INPUTS),
            output_names=["y"],
            source=(folder / "outputs.metal").read_text(encoding="ascii"),
        ),
        commit=factory(
            name="gated_delta_tree_commit",
            input_names=list(COMMIT_INPUTS),
            output_names=["after"],
            source=(folder / "commit.metal").read_text(encoding="ascii"),
        ),
        advance=factory(
            name="gated_delta_tree_advance",
            input_names=list(ADVANCE_INPUTS),
            output_names=["y", "after"],
            source=(folder / "advance.metal").read_text(encoding="ascii"),
        ),
    )
