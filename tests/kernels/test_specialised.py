"""Kernels with constants in the place of template values: their texts, names, and results in the emulator."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from kernels import specialised
from kernels.gated_delta_tree import probe
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.gated_delta_tree.problem import Configuration as Widths
from kernels.host import metal_kernel
from kernels.host.cuda import cuda_kernel
from kernels.qmm import Configuration, cuda, variants
from kernels.qmm.metal import product
from kernels.sample import choice as sample_choice
from kernels.sample.metal import metal_sample
from kernels.specialised import CUDA_TYPES, METAL_TYPES, bare
from kernels.tree_attention import choice as attention_choice
from kernels.tree_attention.metal import metal
from kernels.tree_convolution import choice
from kernels.tree_convolution.call import convolution
from kernels.tree_convolution.problem import Configuration as Rows

IN_EMULATOR = specialised.specialised(metal_kernel, METAL_TYPES)
IN_CUDA_EMULATOR = specialised.specialised(cuda_kernel, CUDA_TYPES)


class Made:
    """A factory that keeps what it was given, of kernels that return the call."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def __call__(self, **making: Any) -> Any:
        self.given.append(making)
        return lambda **call: [making["name"], call]


def test_every_set_of_values_is_a_kernel_of_its_own_made_once() -> None:
    made = Made()
    kernel: Any = specialised.specialised(made, CUDA_TYPES)(
        name="sum",
        source="  // of rows\n  y[0] = T(N);  // rounded\n",
        header="#define A 1  // one\n",
        input_names=["x"],
    )
    assert made.given == []
    calls = [kernel(template=[("T", dtype), ("N", 3), ("whole", True)], grid=1) for dtype in 2 * (mx.bfloat16,)]
    calls.append(kernel(template=[("T", mx.float16), ("N", -4), ("whole", False)], grid=2))
    assert [making["source"] for making in made.given] == [
        "using T = __nv_bfloat16; constexpr int N = 3; constexpr bool whole = true; \ny[0] = T(N);\n",
        "using T = __half; constexpr int N = -4; constexpr bool whole = false; \ny[0] = T(N);\n",
    ]
    assert all(making["header"] == "#define A 1\n" and making["input_names"] == ["x"] for making in made.given)
    names = [name for name, _ in calls]
    assert names[0] == names[1] != names[2]
    assert all(name.startswith("sum_") for name in names)
    assert [call for _, call in calls] == [{"grid": 1}, {"grid": 1}, {"grid": 2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;\n    // whole line\n\tb;  // rest\n\nc;", "a;\n\nb;\n\nc;"),
        ('asm("add; // of PTX" : "=r"(x));  // one', 'asm("add; // of PTX" : "=r"(x));'),
        ('  f("\\"//", 4 / 2);', 'f("\\"//", 4 / 2);'),
        ("#define F(x) \\\n    (x + \\\n     1)\n", "#define F(x) \\\n(x + \\\n1)\n"),
    ],
)
def test_only_what_people_read_goes_and_lines_stay_where_they_are(text: str, expected: str) -> None:
    assert bare(text) == expected


@pytest.mark.parametrize("name", ["tensor", "simdgroup"])
def test_products_are_the_same(name: Any) -> None:
    assert variants.complaint(product(name, IN_EMULATOR), Configuration(mx.bfloat16, 64, 4)) is None


def test_recurrences_and_convolutions_are_the_same() -> None:
    widths = Widths(64, 64, True, (mx.bfloat16, mx.bfloat16, mx.float32, mx.bfloat16, mx.bfloat16))
    assert probe.complaint(metal_recurrence(IN_EMULATOR), widths) is None
    for run in (convolution(IN_EMULATOR, "metal.metal"), convolution(IN_CUDA_EMULATOR, "cuda.cu")):
        assert choice.complaint(run, Rows(mx.float16, 4)) is None


def test_the_cuda_product_is_the_same_with_any_number_of_dimensions() -> None:
    x = mx.random.normal((1, 9, 128), key=mx.random.key(1)).astype(mx.bfloat16)
    w, scales, biases = mx.quantize(mx.random.normal((40, 128), key=mx.random.key(2)).astype(mx.bfloat16), 64, 4)
    plain, lean = (cuda.product(factory)(x[0], w, scales, biases, 64, 4) for factory in (cuda_kernel, IN_CUDA_EMULATOR))
    assert mx.array_equal(plain, lean)
    assert mx.array_equal(cuda.product(IN_CUDA_EMULATOR)(x, w, scales, biases, 64, 4), plain[None])
    expected = mx.quantized_matmul(x[0].astype(mx.float32), w, scales.astype(mx.float32), biases.astype(mx.float32))
    assert mx.allclose(lean, expected, rtol=2.0**-7, atol=0.02)


def test_draws_are_the_same() -> None:
    assert sample_choice.complaint(metal_sample(IN_EMULATOR), mx.bfloat16) is None


def test_attention_is_the_same() -> None:
    assert attention_choice.complaint(metal(IN_EMULATOR), mx.bfloat16, 64) is None
