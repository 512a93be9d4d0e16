"""Applying adapters: found by what a model has, once, without a trace outside tree passes."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import deepseek_v3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.mla import MultiLinear

from bench.families import tiny_model
from worker.engine.verify.adapters import Adapters, apply_adapters
from worker.engine.verify.verifier import Mode, Verifier

NEEDED = {
    "llama": (),
    "qwen3_moe": (),
    "gemma3_text": (),
    "gpt_oss": (),
    "gpt2": ("learned positions",),
    "ministral3": ("position-scaled queries",),
    "mistral4": ("position-scaled queries", "latent attention"),
    "mistral3_ministral3": ("position-scaled queries",),
    "llama4": ("chunked mask",),
    "baichuan_m1": ("convolved keys and values",),
    "deepseek_v3": ("latent attention",),
    "kimi_vl": ("latent attention",),
}


@pytest.fixture(scope="module", params=NEEDED)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_family_gets_the_adapters_that_it_needs(family: str) -> None:
    assert apply_adapters(tiny_model(family)).names == NEEDED[family]


def test_a_second_call_changes_nothing_and_returns_the_same(family: str) -> None:
    model = tiny_model(family)
    first = apply_adapters(model)
    classes = [type(module) for module in model.modules()]
    attention = deepseek_v3.scaled_dot_product_attention
    assert apply_adapters(model) == first
    assert [type(module) for module in model.modules()] == classes
    assert deepseek_v3.scaled_dot_product_attention is attention


def test_outside_a_pass_an_adapted_model_is_the_model_that_it_was(family: str) -> None:
    model = tiny_model(family)
    logits = np.array(prompt_logits(model))
    names = [name for name, _ in tree_flatten(model.parameters())]
    classes = [type(module) for module in model.modules()]
    apply_adapters(model)
    assert np.array_equal(np.array(prompt_logits(model)), logits)
    assert [name for name, _ in tree_flatten(model.parameters())] == names
    assert all(isinstance(module, cls) for module, cls in zip(model.modules(), classes, strict=True))


def prompt_logits(model: Any) -> mx.array:
    logits: mx.array = model(mx.array([[5, 17, 3, 88, 41]]), cache=make_prompt_cache(model))
    return logits


def test_code_that_a_model_directory_brings_along_is_left_alone() -> None:
    brought = type("Attention", (nn.Module,), {"__module__": "custom_model"})()
    brought.embed_q = MultiLinear(4, 4, 2)
    assert apply_adapters(brought) == Adapters((), (), None)
    assert type(brought.embed_q) is MultiLinear


def test_a_model_without_particulars_has_no_limits() -> None:
    assert apply_adapters(tiny_model("llama")) == Adapters((), (), None)


@pytest.mark.parametrize("mode", ["chain", "plain"])
def test_a_model_that_verifies_no_trees_is_left_as_it_is(family: str, mode: Mode) -> None:
    model = tiny_model(family)
    classes = [type(module) for module in model.modules()]
    verifier = Verifier(model, mode)
    assert [type(module) for module in model.modules()] == classes
    assert verifier.shape_after(4, 12) == mode
