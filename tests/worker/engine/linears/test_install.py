"""Which modules of a model multiply by a kernel, and that the model computes what it did."""

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.lora import LoRALinear
from product_kernels import CountedProducts

from bench.families import tiny_model
from kernels.qmm.reference import reference
from worker.engine.kernel_set import STOCK
from worker.engine.linears import install_kernels


def quantized(name: str, **changes: Any) -> Any:
    model = tiny_model(name, **changes)
    nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    return model


def logits(model: Any, tokens: int) -> mx.array:
    out = model(mx.array([[(5 * token + 3) % 97 for token in range(tokens)]]), cache=make_prompt_cache(model))
    mx.eval(out)
    return out


def contents(model: Any) -> dict[str, Any]:
    return {path: array.tolist() for path, array in tree_flatten(model.parameters())}


# The children of one decoder block that are given the same x, as mlx-lm's files have it.
QKV = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}
GATE_UP = {"mlp.gate_proj", "mlp.up_proj"}
INPUTS = {f"linear_attn.in_proj_{name}" for name in ("qkv", "z", "b", "a")}
SIBLINGS = {
    "llama": [[QKV, GATE_UP]] * 3,
    "qwen2": [[QKV, GATE_UP]] * 3,
    "qwen3": [[QKV, GATE_UP]] * 3,
    "gemma3_text": [[QKV, GATE_UP]] * 4,
    "qwen3_5": [[INPUTS, GATE_UP]] * 3 + [[QKV, GATE_UP]],
    "qwen3_moe": [[QKV]] * 3,
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_siblings_are_found_by_what_they_are_given(name: str) -> None:
    model = quantized(name)
    before = [logits(model, tokens) for tokens in (1, 4, 40)]
    installed = install_kernels(model, CountedProducts())

    found = {frozenset(path.split("layers.")[1] for path in group) for group in installed.together}
    blocks = enumerate(SIBLINGS[name])
    expected = {frozenset(f"{number}.{path}" for path in group) for number, block in blocks for group in block}
    assert found == expected
    after = [logits(model, tokens) for tokens in (1, 4, 40)]
    assert all(mx.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_up_to_32_rows_go_to_the_kernel_and_siblings_are_one_product() -> None:
    model = quantized("llama")
    kernels = CountedProducts()
    install_kernels(model, kernels)
    for tokens in (1, 32):
        kernels.shapes.clear()
        logits(model, tokens)
        # q, k and v; o; gate and up; down: three times; then the head.
        assert kernels.shapes == [(tokens, columns) for columns in [64 + 32 + 32, 64, 256, 64] * 3 + [97]]
    kernels.shapes.clear()
    logits(model, 33)
    assert kernels.shapes == []


def test_only_the_rows_that_it_is_left_go_to_the_kernel() -> None:
    model = quantized("llama")
    kernels = CountedProducts()
    installed = install_kernels(model, kernels)
    for rows, expected in ((range(2, 16), {2, 15}), (range(0), set()), (range(1, 33), {1, 2, 15, 16})):
        installed.let(rows)
        kernels.shapes.clear()
        for tokens in (1, 2, 15, 16):
            logits(model, tokens)
        assert {rows for rows, _ in kernels.shapes} == expected


def test_without_fusing_each_linear_has_its_own_product() -> None:
    model = quantized("llama")
    kernels = CountedProducts(fuses_siblings=False)
    assert install_kernels(model, kernels).together == []
    kernels.shapes.clear()
    logits(model, 2)
    assert [columns for _, columns in kernels.shapes] == [64, 32, 32, 64, 128, 128, 64] * 3 + [97]


def test_a_tied_head_goes_to_the_kernel() -> None:
    model = quantized("qwen3")
    kernels = CountedProducts()
    install_kernels(model, kernels)
    kernels.shapes.clear()
    logits(model, 3)
    assert kernels.shapes[-1] == (3, 97)


def test_parameters_stay_what_they_were_and_take_no_more_memory() -> None:
    model = quantized("llama", hidden_size=256, intermediate_size=1024)
    before, held = contents(model), mx.get_active_memory()
    install_kernels(model, CountedProducts())
    assert contents(model) == before
    size = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert mx.get_active_memory() - held < size / 20


def test_the_stock_set_makes_the_model_as_it_was() -> None:
    model = quantized("qwen3_5")
    before, classes = contents(model), [type(module) for module in model.modules()]
    expected = logits(model, 4)
    kernels = CountedProducts()
    install_kernels(model, kernels)
    assert [type(module) for module in model.modules()] != classes
    assert install_kernels(model, STOCK).alone == []
    assert [type(module) for module in model.modules()] == classes
    kernels.shapes.clear()
    assert mx.array_equal(logits(model, 4), expected)
    assert kernels.shapes == []
    assert contents(model) == before


def test_two_models_of_a_process_have_kernels_of_their_own() -> None:
    first, second, third = (quantized("qwen3") for _ in range(3))
    ones, others = CountedProducts(), CountedProducts(fuses_siblings=False)
    install_kernels(first, ones)
    install_kernels(second, others)
    ones.shapes.clear()
    others.shapes.clear()
    logits(third, 2)
    assert (len(ones.shapes), len(others.shapes)) == (0, 0)
    logits(first, 2)
    logits(second, 2)
    assert (len(ones.shapes), len(others.shapes)) == (3 * 4 + 1, 3 * 7 + 1)


class Derived(nn.QuantizedLinear):
    """Multiplies in its own way."""

    def __call__(self, x: mx.array) -> mx.array:
        return 2 * super().__call__(x)


class Mixed(nn.Module):
    """Linears of all kinds, each given x."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.QuantizedLinear(64, 32, bias=True, group_size=32, bits=4)
        self.plain.bias = mx.arange(32.0)
        self.wide = nn.QuantizedLinear(64, 32, bias=False, group_size=32, bits=8)
        self.odd = nn.QuantizedLinear(64, 32, bias=False, group_size=32, bits=3)
        self.other_mode = nn.QuantizedLinear(64, 32, bias=False, mode="mxfp4")
        self.derived = Derived(64, 32, bias=False, group_size=32, bits=4)
        self.dense = nn.Linear(64, 32)
        self.lora = LoRALinear.from_base(nn.QuantizedLinear(64, 32, bias=False, group_size=32, bits=4))
        self.layers: list[Any] = []

    def __call__(self, x: mx.array, cache: Any = None) -> list[mx.array]:
        x = mx.random.normal((1, 2, 64), key=mx.random.key(0)) if x.ndim == 2 else x
        return [linear(x) for linear in self.linears]

    @property
    def linears(self) -> list[Any]:
        return [self.plain, self.wide, self.odd, self.other_mode, self.derived, self.dense, self.lora]


def test_only_what_the_kernel_is_written_for_goes_to_it() -> None:
    model = Mixed()
    x = mx.random.normal((1, 3, 64), key=mx.random.key(1))
    before = model(x)
    kernels = CountedProducts()
    installed = install_kernels(model, kernels)
    assert set(installed.alone) == {"plain", "wide", "lora.linear"}
    assert installed.together == []
    kernels.shapes.clear()
    after = model(x)
    assert kernels.shapes == [(3, 32)] * 3
    assert all(mx.array_equal(one, other) for one, other in zip(before, after, strict=True))
    model(x.astype(mx.float16))
    assert len(kernels.shapes) == 3


@pytest.mark.parametrize("fails", ["raises", "is wrong"])
def test_a_shape_that_the_kernel_cannot_multiply_stays_with_mlx(fails: str) -> None:
    def run(*operands: Any) -> mx.array:
        x = operands[0]
        if x.shape[-1] == 128 and fails == "raises":
            raise ValueError("no plan")
        out = reference(*operands)
        return out + 1 if x.shape[-1] == 128 and x.shape[-2] > 24 else out

    model = quantized("llama")
    expected = logits(model, 4)
    installed = install_kernels(model, CountedProducts(run))
    assert {path for path in installed.alone if "down_proj" in path} == set()
    assert len([path for path in installed.alone if "o_proj" in path]) == 3
    assert mx.array_equal(logits(model, 4), expected)


def test_where_a_group_has_no_plan_each_of_it_goes_alone() -> None:
    def run(*operands: Any) -> mx.array:
        if operands[1].shape[0] == 256:
            raise ValueError("no plan")
        return reference(*operands)

    model = quantized("llama")
    installed = install_kernels(model, CountedProducts(run))
    assert {path.split(".")[-1] for group in installed.together for path in group} == {"q_proj", "k_proj", "v_proj"}
    assert len([path for path in installed.alone if path.endswith(("gate_proj", "up_proj"))]) == 6


def test_other_weights_in_a_module_are_multiplied_by() -> None:
    """Such as those of a head of which a drafter takes some rows."""
    model = quantized("llama")
    install_kernels(model, CountedProducts())
    x = mx.random.normal((1, 2, 64), key=mx.random.key(2))
    twin = copy.copy(model.lm_head)
    for name, array in model.lm_head.items():
        twin[name] = array[mx.array([7, 3])]
    expected = model.lm_head(x)[..., mx.array([7, 3])]
    assert mx.allclose(twin(x), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["weight", "scales", "biases"])
@pytest.mark.parametrize("path", ["q_proj", "o_proj"])  # one of several siblings, and one alone
def test_another_array_of_the_three_is_multiplied_by(path: str, name: str) -> None:
    model = quantized("llama")
    kernels = CountedProducts()
    install_kernels(model, kernels)
    linear, x = model.layers[0].self_attn[path], mx.random.normal((1, 2, 64), key=mx.random.key(2))
    linear[name] = linear[name][::-1]
    arrays = (linear[name] for name in ("weight", "scales", "biases"))
    kernels.shapes.clear()
    assert mx.allclose(linear(x), x @ mx.dequantize(*arrays, group_size=32, bits=4).T, atol=1e-4)
    assert kernels.shapes == []


def test_another_array_of_a_tied_head_is_multiplied_by() -> None:
    model = quantized("qwen3")
    install_kernels(model, CountedProducts())
    head, x = model.model.embed_tokens, mx.random.normal((1, 2, 64), key=mx.random.key(2))
    expected = 2 * head.as_linear(x)
    head.scales, head.biases = 2 * head.scales, 2 * head.biases
    assert mx.allclose(head.as_linear(x), expected, rtol=1e-4, atol=1e-4)


def test_weights_that_are_not_contiguous_are_laid_out_anew() -> None:
    model = Mixed()
    transposed = mx.contiguous(model.plain.weight.T)
    mx.eval(transposed)
    model.plain.weight = transposed.T
    strides: list[Any] = []

    def run(*operands: Any) -> mx.array:
        strides.append(memoryview(operands[1]).strides)
        return reference(*operands)

    expected = model.plain(mx.ones((1, 64)))
    install_kernels(model, CountedProducts(run))
    assert mx.array_equal(model.plain(mx.ones((1, 64))), expected)
    assert set(strides) == {(4 * 8, 4), (4 * 16, 4)}  # of 4 and of 8 bits
