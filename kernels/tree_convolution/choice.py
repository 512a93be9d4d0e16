"""Which variant this machine runs for a type and a size."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from kernels import probing
from kernels.devices import need
from kernels.probing import Choice, Kernel
from kernels.specialised import cuda_kernel, metal_kernel
from kernels.tree_convolution.call import convolution
from kernels.tree_convolution.problem import Configuration, TreeConvolution
from kernels.tree_convolution.reference import reference

CHANNELS = 300  # no whole number of thread blocks
NODES = (3, 16)
# Of the largest value: sums of a few products in another order, rounded to the type.
TOLERANCES = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 1e-2}


def chosen(problem: Configuration, folder: Path | None = None) -> Choice[TreeConvolution]:
    """Found out at the first call in a process. folder: keeps verdicts from one process to the next."""
    return probing.chosen(KERNEL, problem, folder)


def complaint(run: TreeConvolution, problem: Configuration) -> str | None:
    """What is wrong with the results of a variant; None if nothing is."""
    for nodes in NODES:
        x, weight, windows, bias = arguments(problem, nodes, CHANNELS)
        for biased in (None, bias):
            found, expected = run(x, weight, windows, biased), reference(x, weight, windows, biased)
            error = float(mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max())
            if not error <= TOLERANCES[problem.dtype] * float(mx.abs(expected).max()):
                with_bias = "without a bias" if biased is None else "with a bias"
                return f"differs from the reference by {error:.2g} for {nodes} nodes {with_bias}"
    return None


def arguments(problem: Configuration, nodes: int, channels: int) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """x, weight, windows and bias, the same in every process."""
    dtype, size = problem
    shapes = [(1, size - 1 + nodes, channels), (channels, size, 1), (channels,)]
    x, weight, bias = (
        mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype) for seed, shape in enumerate(shapes)
    )
    return x, weight, mx.array(two_branches(size, nodes)), bias


def two_branches(size: int, nodes: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """[N, K] the windows of a tree whose nodes go by turns to one of two branches below the root."""
    windows = np.zeros((nodes, size), dtype=np.int32)
    for node in range(nodes):
        above = windows[max(0, node - 2), 1:] if node else np.arange(size - 1)
        windows[node] = [*above, size - 1 + node]
    return windows


def _metal(_: Configuration) -> TreeConvolution:
    need("Metal")
    return convolution(metal_kernel, "metal.metal")


def _cuda(_: Configuration) -> TreeConvolution:
    need("CUDA")
    return convolution(cuda_kernel, "cuda.cu")


KERNEL: Kernel[Configuration, TreeConvolution] = Kernel(
    name="tree_convolution",
    home=__name__,
    variants={"metal": _metal, "cuda": _cuda},
    check=complaint,
    reference=reference,
)
