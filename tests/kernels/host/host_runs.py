"""One-line runs of small kernels on the host."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.host import Report, RunOptions, metal_kernel, running

Outputs = Mapping[str, tuple[Sequence[int], mx.Dtype]]


def run(
    source: str,
    inputs: Mapping[str, Any],
    outputs: Outputs,
    *,
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int] | None = None,
    options: RunOptions | None = None,
    header: str = "",
    atomic_outputs: bool = False,
    ensure_row_contiguous: bool = True,
    compile_options: Mapping[str, str] | None = None,
    **call: Any,
) -> tuple[list[mx.array], Report]:
    """Runs a kernel once; inputs by name, outputs by name with shape and dtype, one threadgroup if nothing is said."""
    kernel = metal_kernel(
        "case",
        list(inputs),
        list(outputs),
        source,
        header,
        atomic_outputs=atomic_outputs,
        ensure_row_contiguous=ensure_row_contiguous,
        compile_options=compile_options,
    )
    with running(options or RunOptions()) as reports:
        results = kernel(
            inputs=[mx.array(value) if isinstance(value, np.ndarray) else value for value in inputs.values()],
            output_shapes=[shape for shape, _ in outputs.values()],
            output_dtypes=[dtype for _, dtype in outputs.values()],
            grid=grid,
            threadgroup=threadgroup or grid,
            **call,
        )
    return results, reports[0]


def as_float64(array: mx.array) -> NDArray[np.float64]:
    return np.array(array.astype(mx.float32)).astype(np.float64)
