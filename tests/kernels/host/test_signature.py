"""The generated text against the installed MLX's own, byte by byte."""

from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import pytest
from mlx_text import generated_by_mlx

from kernels.host.signature import InputForm, KernelText, TemplateValue, generate


class Case(NamedTuple):
    inputs: dict[str, mx.array]
    outputs: dict[str, mx.Dtype]
    source: str
    header: str = ""
    template: tuple[tuple[str, TemplateValue], ...] = ()
    atomic_outputs: bool = False


X = mx.zeros((4, 64), mx.bfloat16)

CASES = {
    "plain": Case({"a": mx.zeros(100)}, {"out": mx.float32}, "out[thread_position_in_grid.x] = a[0];"),
    "no attribute": Case({"a": mx.zeros(100)}, {"out": mx.float32}, "out[0] = a[0];"),
    "no attribute, two outputs": Case(
        {"a": mx.zeros(100)}, {"one": mx.float32, "two": mx.float16}, "one[0] = a[0]; two[0] = 0;"
    ),
    "no input": Case({}, {"out": mx.int32}, "out[thread_position_in_grid.x] = 3;"),
    "eight elements and seven": Case(
        {"eight": mx.zeros(8), "seven": mx.zeros(7, mx.int32)}, {"out": mx.float32}, "out[0] = eight[0] + seven[0];"
    ),
    "empty": Case({"none": mx.zeros(0)}, {"out": mx.float32}, "out[0] = 0;"),
    "scalars": Case(
        {"f": mx.array(1.5), "i": mx.array(3), "b": mx.array(True), "h": mx.array(1.0, mx.bfloat16)},
        {"out": mx.float32},
        "out[thread_index_in_simdgroup] = f + i + h + b; // f_shape f_strides f_ndim",
    ),
    "shapes": Case(
        {"a": X, "b": mx.zeros((2, 3, 5), mx.float16), "c": mx.zeros(3)},
        {"out": mx.float32},
        "uint i = thread_position_in_grid.x; out[i] = a_shape[1] + b_strides[0] + c_ndim + b_ndim;",
    ),
    "mentioned only in a comment and in a longer name": Case(
        {"y": mx.zeros(20), "yy": mx.zeros(20)},
        {"out": mx.float32},
        "// grid_origin is nowhere used\nout[0] = yy_shape[0];",
    ),
    "mentioned only in the header": Case(
        {"a": mx.zeros(20)},
        {"out": mx.float32},
        "out[0] = first(a);",
        header="// a_shape, thread_position_in_grid\nfloat first(const device float* a) { return a[0]; }\n",
    ),
    "template": Case(
        {"x": X, "scale": mx.array(2.0)},
        {"out": mx.bfloat16, "sums": mx.float32},
        "out[thread_position_in_grid.x] = T(x[0]); sums[0] = K;",
        header="// of the template kernel\n",
        template=(("T", mx.bfloat16), ("K", -64), ("FLAG", True), ("OFF", False), ("U", mx.float32)),
    ),
    "one template value": Case({"x": X}, {"out": mx.float32}, "out[0] = N;", template=(("N", 16),)),
    "atomic outputs": Case(
        {"x": X},
        {"count": mx.uint32, "total": mx.float32},
        "atomic_fetch_add_explicit(&count[0], thread_index_in_threadgroup, memory_order_relaxed);",
        atomic_outputs=True,
    ),
    "every attribute": Case(
        {"x": X},
        {"out": mx.uint32},
        """
        out[0] = dispatch_quadgroups_per_threadgroup + dispatch_simdgroups_per_threadgroup +
            dispatch_threads_per_threadgroup.x + grid_origin.x + grid_size.x + quadgroup_index_in_threadgroup +
            quadgroups_per_threadgroup + simdgroup_index_in_threadgroup + simdgroups_per_threadgroup +
            thread_execution_width + thread_index_in_quadgroup + thread_index_in_simdgroup +
            thread_index_in_threadgroup + thread_position_in_grid.x + thread_position_in_threadgroup.x +
            threadgroup_position_in_grid.x + threadgroups_per_grid.x + threads_per_grid.x + threads_per_simdgroup +
            threads_per_threadgroup.x;""",
    ),
    "every type": Case(
        {
            str(dtype).rpartition(".")[2]: mx.zeros(9, dtype)
            for dtype in (
                mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64,
                mx.float16, mx.bfloat16, mx.float32, mx.complex64,
            )
        },
        {"p": mx.bool_, "q": mx.uint8, "r": mx.int64, "s": mx.complex64},
        "p[thread_position_in_grid.x] = false;",
    ),
    # MLX counts the buffer of the shape as if it were an output, and closes the list after `one` and after `two`.
    "defect: two outputs behind a shape, without an attribute": Case(
        {"a": X}, {"one": mx.float32, "two": mx.float16}, "one[0] = a_shape[0]; two[0] = 0;"
    ),
}  # fmt: skip


def ours(name: str, case: Case) -> KernelText:
    return generate(
        name,
        list(case.inputs),
        list(case.outputs),
        case.source,
        case.header,
        [InputForm(array.dtype, array.ndim, array.size) for array in case.inputs.values()],
        list(case.outputs.values()),
        case.template,
        case.atomic_outputs,
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_text_is_what_mlx_writes(case: Case, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    theirs = generated_by_mlx(
        capfd,
        tmp_path,
        mx.fast.metal_kernel(
            name="case",
            input_names=list(case.inputs),
            output_names=list(case.outputs),
            source=case.source,
            header=case.header,
            atomic_outputs=case.atomic_outputs,
        ),
        list(case.inputs.values()),
        template=list(case.template) or None,
        output_shapes=[(4,)] * len(case.outputs),
        output_dtypes=list(case.outputs.values()),
    )
    text = ours("case", case)
    assert text.text == theirs
    # The list is closed once, by the one `) {` of the signature, except where MLX's defect closes it twice.
    assert text.well_formed == (text.signature.count(") {\n") == 1)


def test_defect_of_mlx_is_marked() -> None:
    assert [name for name, case in CASES.items() if not ours("case", case).well_formed] == [
        "defect: two outputs behind a shape, without an attribute"
    ]


def test_a_type_that_metal_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"Metal has no type for mlx\.core\.float64"):
        ours("case", Case({"x": X}, {"out": mx.float64}, "out[0] = 0;"))
