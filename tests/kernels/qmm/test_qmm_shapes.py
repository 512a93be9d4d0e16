"""Products by matrices of a model's shapes: what is found wrong, where, and that it is remembered."""

from pathlib import Path
from typing import Any

import faulty_products
import mlx.core as mx
import pytest

from kernels.qmm import shapes
from kernels.qmm.reference import reference
from kernels.qmm.shapes import Matrix, complaint, complaints

MATRIX = Matrix(mx.float32, 32, 4, depth=64, columns=40)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_that_is_right_is_not_complained_of(dtype: mx.Dtype, bits: int) -> None:
    asked: list[tuple[Any, ...]] = []

    def wide(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        asked.append((x.shape, w.shape, scales.shape, x.dtype, scales.dtype))
        operands = (array.astype(mx.float32) for array in (x, scales, biases))
        wide_x, wide_scales, wide_biases = operands
        return reference(wide_x, w, wide_scales, wide_biases, group_size, bits).astype(x.dtype)

    assert complaint(wide, Matrix(dtype, 32, bits, 64, 2500)) is None
    words, types = (2500, 64 * bits // 32), (dtype, dtype)
    assert asked == [((rows, 64), words, (2500, 2), *types) for rows in (8, 16, 24, 32)]


def test_a_row_block_that_is_wrong_is_found() -> None:
    def wrong(*operands: Any) -> mx.array:
        out = reference(*operands)
        return 1.5 * out if out.shape[0] > 16 else out

    assert complaint(wrong, MATRIX) == "a product of 24 rows is off by 0.5 of its largest value"


def test_a_fault_ends_a_child_and_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shapes, "KERNEL", faulty_products.KERNEL)
    fatal = MATRIX._replace(columns=faulty_products.FATAL_COLUMNS)
    chosen = dict.fromkeys((fatal, MATRIX), "faulty")
    assert complaints(chosen, tmp_path) == {fatal: "SIGABRT ended its process"}
    monkeypatch.setattr("subprocess.Popen", None)
    assert complaints(chosen, tmp_path) == {fatal: "SIGABRT ended its process"}
