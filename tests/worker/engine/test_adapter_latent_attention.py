"""Latent attention: a pass of several nodes reads the latent rows and never expands keys and values."""

import gc
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from adapted_passes import (
    ACCEPTED,
    TOKENS,
    TOLERANCE,
    chain_of,
    error,
    error_after_commit,
    pass_error,
    prompt,
    tree_cache,
    tree_logits,
    tree_of,
)
from mlx_lm.models import base, deepseek_v3
from mlx_lm.models.cache import KVCache
from mlx_lm.models.mla import MultiLinear

from bench.families import tiny_model
from worker.engine.tree import TokenTree
from worker.engine.verify.adapters import apply_adapters
from worker.engine.verify.adapters.latent_attention import KEYS, VALUES, adapt_latent_attention
from worker.engine.verify.tree_pass import TreePass, active_pass, tree_pass

FAMILIES = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "mistral4")
# More tokens than the 16 that the indexers of deepseek_v32 and glm_moe_dsa select.
PREFIX = prompt(30)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_gets_the_logits_of_its_own_path(family: str) -> None:
    model = tiny_model(family)
    assert "latent attention" in apply_adapters(model).names
    assert pass_error(model, PREFIX, tree_of()) < TOLERANCE
    assert pass_error(model, PREFIX, chain_of(6)) < TOLERANCE
    assert error_after_commit(model, PREFIX, tree_of(), ACCEPTED) < TOLERANCE


@pytest.mark.parametrize("family", ["deepseek_v3", "mistral4"])
def test_quantized_projections_are_read_the_same_way(family: str) -> None:
    model = tiny_model(family, kv_lora_rank=64, qk_nope_head_dim=32)
    nn.quantize(model, group_size=32, bits=8, class_predicate=lambda _, part: isinstance(part, MultiLinear))
    assert "latent attention" in apply_adapters(model).names
    assert pass_error(model, PREFIX, tree_of()) < TOLERANCE


@pytest.mark.parametrize("family", ["kimi_linear", "bailing_hybrid", "bailing_moe_v3", "kimi_k3"])
def test_a_chain_through_a_hybrid_gets_the_logits_of_plain_decoding(family: str) -> None:
    # Its recurrent layers follow trees by other means.
    model = tiny_model(family)
    assert "latent attention" in apply_adapters(model).names
    assert pass_error(model, PREFIX, chain_of(6)) < TOLERANCE


@pytest.mark.parametrize("family", ["deepseek_v3", "mistral4"])
@pytest.mark.parametrize("tree", [tree_of(), chain_of(6)], ids=["tree", "chain"])
def test_keys_and_values_of_the_prefix_are_never_expanded(family: str, tree: TokenTree) -> None:
    heads, size, tokens = 8, 64, 2048
    model = tiny_model(
        family, num_hidden_layers=1, num_attention_heads=heads, qk_nope_head_dim=size, v_head_dim=size, kv_lora_rank=16
    )
    expansion = heads * tokens * size * 4  # bytes of the keys of one layer
    long = prompt(tokens)
    expanded = bytes_of_pass(model, long, tree)
    apply_adapters(model)
    latent = bytes_of_pass(model, long, tree)
    assert expanded > 2 * expansion
    # The scores of the nodes are the largest arrays left; there are a few of them at a time.
    assert latent < 5 * heads * tokens * len(tree) * 4 < 2 * expansion


def bytes_of_pass(model: Any, prefix: list[int], tree: TokenTree) -> int:
    """Peak memory of a pass after `prefix`, above what is there before it."""
    cache = tree_cache(model, prefix)
    mx.eval([layer.state for layer in cache])
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    tree_logits(model, cache, tree)
    return mx.get_peak_memory() - before


class Latent:
    """Latent rows, queries and projections of one layer: 3 heads of 8, rank 12, 10 rows before 12 nodes."""

    def __init__(self) -> None:
        mx.random.seed(5)
        self.embed, self.unembed = MultiLinear(8, 12, 3), MultiLinear(12, 8, 3)
        self.rows = mx.random.normal((1, 1, 22, 12))
        self.queries = mx.random.normal((1, 3, 12, 8))
        self.scores = mx.random.normal((1, 3, 12, 22))
        self.sinks = mx.random.normal((3,))
        self.module = deepseek_v3.DeepseekV3Attention.__new__(deepseek_v3.DeepseekV3Attention)
        nn.Module.__init__(self.module)
        self.module.embed_q, self.module.unembed_out = self.embed, self.unembed

    def attend(self, attention: Any, mask: Any, sinks: Any) -> mx.array:
        keys, values = self.embed(self.rows, transpose=False), self.unembed(self.rows)
        return attention(self.queries, keys, values, cache=KVCache(), scale=0.5, mask=mask, sinks=sinks)


@pytest.fixture
def latent() -> Latent:
    return Latent()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "tree", "scores"])
def test_masks_and_sinks_mean_the_same_as_with_expanded_keys(latent: Latent, mask: str, sinks: bool) -> None:
    masks = {"none": None, "causal": "causal", "tree": TreePass(tree_of()).mask(10), "scores": latent.scores}
    options = (masks[mask], latent.sinks if sinks else None)
    expected = np.array(latent.attend(base.scaled_dot_product_attention, *options))
    assert adapt_latent_attention(latent.module)
    with tree_pass(tree_of()):
        got = np.array(latent.attend(deepseek_v3.scaled_dot_product_attention, *options))
    assert error(got, expected) < TOLERANCE


def test_attention_over_other_arrays_is_left_alone(latent: Latent) -> None:
    assert adapt_latent_attention(latent.module)
    keys, values = mx.random.normal((1, 3, 22, 8)), mx.random.normal((1, 3, 22, 8))
    options = {"cache": KVCache(), "scale": 0.5, "mask": None}
    expected = np.array(base.scaled_dot_product_attention(latent.queries, keys, values, **options))
    with tree_pass(tree_of()):
        latent.embed(latent.rows, transpose=False), latent.unembed(latent.rows)
        got = deepseek_v3.scaled_dot_product_attention(latent.queries, keys, values, **options)
        assert np.array_equal(np.array(got), expected)


def test_nothing_is_remembered_beyond_the_attention_that_asks(latent: Latent) -> None:
    assert adapt_latent_attention(latent.module)
    with tree_pass(tree_of()) as current:
        latent.embed(latent.rows, transpose=False), latent.unembed(latent.rows)
        assert set(current.notes) == {KEYS, VALUES}
        latent.attend(deepseek_v3.scaled_dot_product_attention, None, None)
        assert current.notes == {}
    assert active_pass() is None
    latent.embed(latent.rows, transpose=False)
    assert current.notes == {}


def test_prefill_runs_as_mlx_lm_wrote_it() -> None:
    tokens = mx.array([[number % TOKENS for number in range(20)]])
    model = tiny_model("deepseek_v3")
    before = np.array(model(tokens))
    apply_adapters(model)
    assert np.array_equal(np.array(model(tokens)), before)
