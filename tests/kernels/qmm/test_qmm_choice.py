"""The public function: shapes, errors, what goes to a kernel and what to MLX; and the probe behind it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from qmm_problems import Problem, assert_one_rounding

from kernels import qmm
from kernels.host import metal_kernel
from kernels.probing import Choice, UnavailableError
from kernels.qmm import cuda, variants
from kernels.qmm.metal import Name, product
from kernels.qmm.reference import Product, reference
from kernels.qmm.variants import Configuration

CONFIGURATION = Configuration(mx.bfloat16, group_size=64, bits=4)


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
    assert variants.complaint(right, CONFIGURATION) is None
    assert variants.complaint(lambda x, *rest: right(x[::-1], *rest), CONFIGURATION) is not None
    assert variants.complaint(lambda *all_: right(*all_) * float("nan"), CONFIGURATION) is not None


def with_operands_cut(lost: int) -> Product:
    """A product in float32 of values rounded to what is left of their 24 bits without the last ones."""

    def cut(array: mx.array) -> mx.array:
        words = array.astype(mx.float32).view(mx.uint32)
        return ((words + (1 << lost - 1)) >> lost << lost).view(mx.float32)

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        wide = scales.astype(mx.float32), biases.astype(mx.float32)
        return (cut(x) @ cut(mx.dequantize(w, *wide, group_size=group_size, bits=bits)).T).astype(x.dtype)

    return run


@pytest.mark.parametrize("dtype", qmm.DTYPES)
def test_a_wide_product_may_be_of_tf32_but_not_of_bfloat16(dtype: mx.Dtype) -> None:
    configuration = Configuration(dtype, group_size=64, bits=4)
    assert variants.complaint(with_operands_cut(13), configuration) is None
    of_bfloat16 = variants.complaint(with_operands_cut(16), configuration)
    assert of_bfloat16 is None if dtype == mx.bfloat16 else of_bfloat16 is not None


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="states what a machine without a GPU says")
def test_on_the_cpu_the_reference_is_used_and_the_others_are_explained() -> None:
    choice = qmm.chosen(mx.bfloat16, group_size=64, bits=4)
    assert choice.name == "reference"
    assert choice.run is reference
    without_metal, without_cuda = "MLX does not compute on Metal here", "MLX does not compute on CUDA here"
    assert choice.refused == {"tensor": without_metal, "simdgroup": without_metal, "cuda": without_cuda}


@pytest.mark.parametrize(
    ("architecture", "dtype", "words"),
    [
        ("sm_80", mx.bfloat16, "the GPU is sm_80; the kernel is for sm_90"),
        (
            "sm_90",
            mx.float32,
            "x, scales and biases are mlx.core.float32; the kernel multiplies bfloat16 and float16",
        ),
    ],
)
def test_a_gpu_of_another_kind_and_a_wide_type_are_explained(
    architecture: str, dtype: mx.Dtype, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(mx, "device_info", lambda: {"architecture": architecture})
    with pytest.raises(UnavailableError) as error:
        variants.KERNEL.variants["cuda"](Configuration(dtype, 64, 4))
    assert str(error.value) == words


def counted(shapes: list[tuple[int, ...]]) -> Product:
    """A product that is right, and notes the shape of each x."""

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        shapes.append(x.shape)
        wide_x, wide_scales, wide_biases = (array.astype(mx.float32) for array in (x, scales, biases))
        return reference(wide_x, w, wide_scales, wide_biases, group_size, bits)

    return run


def test_a_product_without_a_plan_takes_the_stock_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(rows: int, *_: int) -> None:
        if rows > 8:
            raise ValueError("no plan is small enough")

    monkeypatch.setattr(cuda, "plan", plan)
    variants._has_plan.cache_clear()
    shapes = list[tuple[int, ...]]()
    run = variants.where_planned(counted(shapes))
    for rows in (8, 9):
        operands = Problem(rows, 24, 64, 64, 4, mx.float32).operands()
        np.testing.assert_array_equal(np.array(run(*operands)), np.array(reference(*operands)))
    assert shapes == [(8, 64)]
    variants._has_plan.cache_clear()


def test_scales_of_another_type_than_x_take_the_stock_path() -> None:
    shapes = list[tuple[int, ...]]()
    run = variants.where_planned(counted(shapes))
    x, w, scales, biases, group_size, bits = Problem(2, 24, 64, 64, 4, mx.bfloat16).operands()
    wide = scales.astype(mx.float32), biases.astype(mx.float32)
    for operands in ((scales, biases), (wide[0], biases), (scales, wide[1])):
        run(x, w, *operands, group_size, bits)
    assert shapes == [(2, 64)]


@pytest.mark.parametrize("bits", qmm.BITS)
@pytest.mark.parametrize("group_size", qmm.GROUP_SIZES)
def test_the_probe_reaches_every_kind_of_plan_of_the_cuda_kernel(group_size: int, bits: int) -> None:
    plans = [cuda.plan(*shape, group_size, bits) for shape in variants.probed(group_size, on_gpu=True)]
    for rows in (8, 16, 32):
        assert {plan.split > 1 for plan in plans if plan.rows == rows} == {False, True}
    assert any(plan.phases > 1 for plan in plans)
    assert {plan.tiling for plan in plans} >= {tiling for tiling, *_ in cuda.TILINGS.values()}
    if bits == 4:
        assert {plan.tiling for plan in plans} == {
            tiling for all_of_rows in cuda.TILINGS.values() for tiling in all_of_rows
        }


def test_without_a_gpu_the_probe_is_small_and_a_right_product_passes() -> None:
    shapes = list[tuple[int, ...]]()
    assert variants.complaint(counted(shapes), CONFIGURATION) is None
    probed = variants.probed(64, on_gpu=mx.default_device() == mx.gpu)
    assert shapes == [(*before, rows, depth) for rows, depth, _ in probed for before in ((), (1,))]


def test_the_probe_refuses_a_product_that_is_wrong_for_the_rows_of_a_model() -> None:
    def nothing_of_three_dimensions(x: mx.array, *rest: Any) -> mx.array:
        return reference(x, *rest) * (x.ndim == 2)

    complaint = variants.complaint(nothing_of_three_dimensions, Configuration(mx.float32, group_size=64, bits=4))
    assert (
        complaint
        == "a product of Shape(rows=1, depth=320, columns=40) is off by 1 of its largest value, for x of 3 dimensions"
    )


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


@pytest.mark.parametrize(
    ("release", "expected"), [("24.6.0", False), ("25.1.0", False), ("25.2.0", True), ("26.0.0", True), ("", False)]
)
def test_which_systems_have_tensor_operations(release: str, expected: bool) -> None:
    assert variants.has_tensor_operations(release) == expected
