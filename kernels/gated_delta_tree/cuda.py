"""The CUDA variant: `outputs.cu`, `commit.cu` and `advance.cu` with `made.cu`, the algorithms of the Metal files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from kernels.gated_delta_tree.call import ADVANCE_INPUTS, COMMIT_INPUTS, OUTPUTS_INPUTS, Kernel, recurrence
from kernels.gated_delta_tree.problem import Recurrence
from kernels.texts import text_beside


def cuda_recurrence(factory: Callable[..., Any]) -> Recurrence:
    """factory: `mx.fast.cuda_kernel`, or what takes its place."""
    return recurrence(
        outputs=_kernel(factory, "outputs", OUTPUTS_INPUTS, ["y"]),
        commit=_kernel(factory, "commit", COMMIT_INPUTS, ["after"]),
        advance=_kernel(factory, "advance", ADVANCE_INPUTS, ["y", "after"]),
    )


def _kernel(factory: Callable[..., Any], name: str, input_names: Sequence[str], output_names: Sequence[str]) -> Kernel:
    """A kernel that has its inputs' types in its name: MLX does not look at them (see `named`)."""
    source, header = text_beside(__file__, f"{name}.cu"), text_beside(__file__, "made.cu")

    @cache
    def typed(types: tuple[mx.Dtype, ...]) -> Kernel:
        tags = "_".join(str(dtype).removeprefix("mlx.core.") for dtype in types)
        kernel: Kernel = factory(
            name=f"gated_delta_tree_{name}_{tags}",
            input_names=list(input_names),
            output_names=list(output_names),
            source=source,
            header=header,
            ensure_row_contiguous=False,
        )
        return kernel

    def run(*, inputs: Sequence[mx.array], **call: Any) -> Any:
        return typed(tuple(array.dtype for array in inputs))(inputs=inputs, **call)

    return run
