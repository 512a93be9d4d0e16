"""The public function: shapes, errors, what goes to a kernel and what to MLX; and the probe behind it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from qmm_problems import Problem, assert_one_rounding

from kernels import qmm
from kernels.host import metal_kernel
from kernels.probing import Choice
from kernels.qmm import variants
from kernels.qmm.metal import Name, product
from kernels.qmm.reference import reference


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of x that reach a kernel, here the reference."""
    shapes = []

    def run(x: mx.array, *rest: Any) -> mx.array:
        shapes.append(x.shape)
        return reference(x, *rest)

    monkeypatch.setattr(qmm, "chosen", lambda dtype, **_: Choice("recorded", run))
    return shapes


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((64,), [(1, 64)]), ((1, 64), [(1, 64)]), ((2, 16, 64), [(32, 64)]), ((3, 11, 64), [])],
)
def test_up_to_32_rows_of_all_leading_dimensions_go_to_a_kernel(
    shape: tuple[int, ...], expected: list[tuple[int, ...]], sent: list[tuple[int, ...]]
) -> None:
    _, w, scales, biases, group_size, bits = Problem(1, 24, 64, 64, 4, mx.bfloat16).operands()
    x = mx.random.normal(shape, key=mx.random.key(1)).astype(mx.bfloat16)
    out = qmm.quantized_matmul(x, w, scales, biases, group_size=group_size, bits=bits)
    assert (out.shape, out.dtype) == ((*shape[:-1], 24), mx.bfloat16)
    assert sent == expected
    stock = mx.quantized_matmul(x, w, scales, biases, group_size=group_size, bits=bits)
    np.testing.assert_array_equal(np.array(out.view(mx.uint16)), np.array(stock.view(mx.uint16)))


def test_no_rows_give_no_rows(sent: list[tuple[int, ...]]) -> None:
    _, w, scales, biases, group_size, bits = Problem(1, 24, 64, 64, 4, mx.bfloat16).operands()
    x = mx.zeros((2, 0, 64), dtype=mx.bfloat16)
    out = qmm.quantized_matmul(x, w, scales, biases, group_size=group_size, bits=bits)
    assert (out.shape, out.dtype, sent) == ((2, 0, 24), mx.bfloat16, [])


def test_weights_of_fewer_than_8_words_go_to_mlx(sent: list[tuple[int, ...]]) -> None:
    x, w, scales, biases, group_size, bits = Problem(2, 1, 32, 32, 4, mx.float32).operands()
    assert w.size == 4
    assert qmm.quantized_matmul(x, w, scales, biases, group_size=group_size, bits=bits).shape == (2, 1)
    assert sent == []


def test_x_of_a_narrower_type_than_the_scales_is_widened(sent: list[tuple[int, ...]]) -> None:
    x, w, scales, biases, group_size, bits = Problem(2, 24, 64, 64, 4, mx.float32).operands()
    narrow = x.astype(mx.float16)
    out = qmm.quantized_matmul(narrow, w, scales, biases, group_size=group_size, bits=bits)
    assert out.dtype == mx.float32
    assert_one_rounding(out, narrow.astype(mx.float32), w, scales, biases, group_size, bits)
    assert sent == [(2, 64)]


X, W = mx.zeros((2, 64)), mx.zeros((24, 8), dtype=mx.uint32)
SCALES = mx.zeros((24, 1))


@pytest.mark.parametrize(
    ("operands", "group_size", "bits", "words"),
    [
        ((X, W, SCALES, SCALES), 64, 3, "bits is 3 and group_size 64"),
        ((X, W, SCALES, SCALES), 16, 4, "bits is 4 and group_size 16"),
        ((X.astype(mx.int32), W, SCALES, SCALES), 64, 4, "x is mlx.core.int32"),
        ((X, W.astype(mx.float32), SCALES, SCALES), 64, 4, "w is mlx.core.float32 with 2"),
        ((X, W[0], SCALES, SCALES), 64, 4, "w is mlx.core.uint32 with 1"),
        ((X[:, :32], W, SCALES, SCALES), 64, 4, "x has 32 columns and w 64"),
        ((X, W, SCALES, SCALES), 128, 4, "both need the same multiple of 128"),
        ((X, W, SCALES[:5], SCALES), 64, 4, r"scales are \(5, 1\) and biases \(24, 1\); both must be \(24, 1\)"),
    ],
)
def test_errors_name_what_is_wrong(operands: tuple[mx.array, ...], group_size: int, bits: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        qmm.quantized_matmul(*operands, group_size=group_size, bits=bits)


@pytest.mark.parametrize("name", ["simdgroup", "tensor"])
def test_the_probe_passes_the_variants_and_refuses_a_wrong_product(name: Name) -> None:
    right = product(name, metal_kernel)
    assert variants.complaint(mx.bfloat16, 64, 4, right) is None
    assert variants.complaint(mx.bfloat16, 64, 4, lambda x, *rest: right(x[::-1], *rest)) is not None
    assert variants.complaint(mx.bfloat16, 64, 4, lambda *all_: right(*all_) * float("nan")) is not None


def test_on_the_cpu_the_reference_is_used_and_the_others_are_explained() -> None:
    chosen = variants.chosen(mx.DeviceType.cpu, mx.bfloat16, 64, 4)
    assert chosen.name == "reference"
    assert chosen.run is reference
    assert set(chosen.refused) >= {"tensor", "simdgroup"}
    words = "MLX's default device is not the GPU" if mx.metal.is_available() else "this machine has no Metal"
    assert chosen.refused["simdgroup"] == words


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("applegpu_g16s", False),
        ("applegpu_g17s", True),
        ("applegpu_g17p", False),
        ("applegpu_g18p", True),
        ("x86_64", False),
    ],
)
def test_which_gpus_have_tensor_units(architecture: str, expected: bool) -> None:
    assert variants.has_tensor_units(architecture) == expected
