"""How the kernel is called; Metal and CUDA share inputs, template values and grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx

from kernels.texts import text_beside
from kernels.tree_convolution.problem import TreeConvolution

THREADS = 256


def convolution(factory: Callable[..., Any], file: str) -> TreeConvolution:
    """file: the text, beside this one.

    factory: `mx.fast.metal_kernel` or `mx.fast.cuda_kernel`, or what takes its place.
    """
    source = text_beside(__file__, file)
    kernel = factory(
        name="tree_convolution",
        input_names=["x", "weight", "windows", "bias"],
        output_names=["out"],
        source=source,
    )

    @lru_cache(maxsize=64)  # all layers of a pass ask for the same
    def launch(dtype: mx.Dtype, channels: int, nodes: int, size: int, with_bias: bool) -> dict[str, Any]:
        return {
            "template": [("T", dtype), ("K", size), ("BIAS", with_bias)],
            "grid": (-(-channels // THREADS) * THREADS, nodes, 1),
            "threadgroup": (THREADS, 1, 1),
            "output_shapes": [(1, nodes, channels)],
            "output_dtypes": [dtype],
        }

    def run(x: mx.array, weight: mx.array, windows: mx.array, bias: mx.array | None = None) -> mx.array:
        nodes, size = windows.shape
        unread = weight if bias is None else bias
        arguments = launch(x.dtype, x.shape[2], nodes, size, bias is not None)
        (out,) = kernel(inputs=[x, weight, windows, unread], **arguments)
        return out  # type: ignore[no-any-return]

    return run
