"""What a sanitizer is given to run: each kernel there is, and a verdict on what it gives."""

import re
from collections.abc import Callable

import mlx.core as mx
import pytest

from bench import sanitized_kernels
from kernels.qmm.reference import Product, reference
from kernels.tree_convolution.problem import TreeConvolution
from tests.worker.engine.kernel_sets import ReferenceKernels
from worker.engine.kernel_set import KERNELS

OPERATIONS = {"product", "attention", "outputs", "commit", "advance", "convolution", "sample"}


class WideReferences(ReferenceKernels):
    """MLX on a CPU sums products of 16-bit rows in 16 bit."""

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product:
        def product(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, *how: int) -> mx.array:
            wide_x, wide_scales, wide_biases = (array.astype(mx.float32) for array in (x, scales, biases))
            return reference(wide_x, w, wide_scales, wide_biases, *how)

        counted: Product = self._counted("product", product)
        return counted


class WithoutBias(WideReferences):
    """Forgets the bias of convolutions."""

    def convolution(self, dtype: mx.Dtype, size: int) -> TreeConvolution | None:
        convolution = super().convolution(dtype, size)
        assert convolution is not None
        return lambda x, weight, windows, bias=None: convolution(x, weight, windows)


def status(monkeypatch: pytest.MonkeyPatch, kernels: Callable[[], ReferenceKernels]) -> int | str | None:
    monkeypatch.setattr(sanitized_kernels, "UntriedKernels", kernels)
    with pytest.raises(SystemExit) as ended:
        sanitized_kernels.main()
    return ended.value.code


def test_every_operation_is_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = WideReferences()
    assert status(monkeypatch, lambda: kernels) == 0
    assert set(kernels.calls) == OPERATIONS
    printed = capsys.readouterr().out
    assert "\nqmm again: off by 0\n" in printed
    named = {re.split("[ :]", line)[0] for line in printed.splitlines()}
    assert named == set(KERNELS)


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, WithoutBias) == 1
