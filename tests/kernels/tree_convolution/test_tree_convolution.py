"""Both texts on the host, and the reference, against a convolution down each path in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernels.host import RunOptions, metal_kernel, running
from kernels.host.cuda import cuda_kernel
from kernels.tree_convolution import Configuration, chosen, reference
from kernels.tree_convolution.call import convolution
from kernels.tree_convolution.choice import arguments, complaint
from kernels.tree_convolution.problem import TreeConvolution

ROUNDING = {mx.float32: 1e-6, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
PARENTS = [-1, 0, 0, 1, 2, 3, 3, 0]
VARIANTS: dict[str, TreeConvolution] = {
    "metal": convolution(metal_kernel, "metal.metal"),
    "cuda": convolution(cuda_kernel, "cuda.cu"),
    "reference": reference,
}


def as_float64(array: mx.array) -> Any:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def windows_of(parents: Sequence[int], size: int) -> list[list[int]]:
    """By walking up: the rows before the tree are 0 to size - 2, in the order of the text."""
    windows = []
    for node in range(len(parents)):
        window: list[int] = []
        above = node
        while len(window) < size:
            window.append(size - 1 + above)
            above = parents[above] if above >= 0 else above - 1
        windows.append(window[::-1])
    return windows


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("dtype", "size"), [(mx.float32, 2), (mx.bfloat16, 4), (mx.float16, 3)])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_node_is_convolved_down_its_own_path(name: str, dtype: mx.Dtype, size: int, with_bias: bool) -> None:
    channels, nodes = 270, len(PARENTS)
    random = np.random.default_rng(size)
    x, weight, bias = (
        mx.array(random.standard_normal(shape).astype(np.float32)).astype(dtype)
        for shape in ((1, size - 1 + nodes, channels), (channels, size, 1), (channels,))
    )
    windows = windows_of(PARENTS, size)
    expected = np.einsum("nkc,ck->nc", as_float64(x)[0][windows], as_float64(weight)[..., 0])
    expected += as_float64(bias) if with_bias else 0.0
    with running(RunOptions()) as reports:
        y = VARIANTS[name](x, weight, mx.array(windows, dtype=mx.int32), bias if with_bias else None)
    assert (y.shape, y.dtype) == ((1, nodes, channels), dtype)
    np.testing.assert_allclose(as_float64(y)[0], expected, rtol=ROUNDING[dtype], atol=1e-5)
    for report in reports:
        assert report.traffic["out"].most_writes == 1
        assert report.traffic["bias"].bytes_read == (nodes * channels * dtype.size if with_bias else 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_probe_passes_what_is_right(name: str) -> None:
    assert complaint(VARIANTS[name], Configuration(mx.bfloat16, 4)) is None


def test_the_probe_catches_what_is_wrong() -> None:
    problem = Configuration(mx.float32, 4)
    unbiased = complaint(lambda x, weight, windows, bias=None: reference(x, weight, windows), problem)
    assert unbiased is not None
    assert unbiased.endswith("for 3 nodes with a bias")
    mixed = complaint(lambda x, weight, windows, bias=None: reference(x, weight, windows[:, ::-1], bias), problem)
    assert mixed is not None
    assert mixed.endswith("for 3 nodes without a bias")
    nothing = complaint(lambda *given: reference(*given) * mx.nan, problem)
    assert nothing is not None
    assert "by nan" in nothing


def test_the_problem_of_the_probe_has_windows_that_are_no_slices() -> None:
    windows = np.array(arguments(Configuration(mx.float32, 4), 5, 8)[2])
    assert windows.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [2, 3, 4, 6], [2, 3, 5, 7]]


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="states what a machine without a GPU says")
def test_without_a_gpu_the_reference_runs_and_the_reasons_are_kept() -> None:
    choice = chosen(Configuration(mx.bfloat16, 4))
    assert choice.name == "reference"
    assert choice.refused == {
        "metal": "MLX does not compute on Metal here",
        "cuda": "MLX does not compute on CUDA here",
    }
