"""Whole models with recurrent layers: a pass over a tree against one-token decoding down every path, and after it."""

import random
import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from recurrent_passes import (
    along_paths,
    chain_of,
    commit,
    deep_tree,
    instrumented,
    one_by_one,
    pass_over,
    relative_error,
    tree_cache,
)

from bench.families import tiny_model, vocabulary
from worker.engine.verify.copies import copied_all
from worker.engine.verify.recurrent import instrument_mixers
from worker.engine.verify.tree_pass import tree_pass

MIXERS = {
    "qwen3_next": {"Qwen3NextGatedDeltaNet": "tree form"},
    "qwen3_5": {"GatedDeltaNet": "tree form"},
    "qwen3_5_moe": {"GatedDeltaNet": "tree form"},
    "olmo_hybrid": {"GatedDeltaNet": "tree form"},
    "kimi_linear": {"KimiDeltaAttention": "tree form"},
    "kimi_k3": {"KimiK3DeltaAttention": "tree form"},
    "bailing_moe_v3": {"BailingKDA": "tree form"},
    "mamba2": {"Mamba2Block": "tree form"},
    "nemotron_h": {"NemotronHMamba2Mixer": "tree form"},
    "falcon_h1": {"FalconH1Mixer": "tree form"},
    "granitemoehybrid": {"GraniteMoeHybridMamba2Mixer": "tree form"},
    "plamo2": {"Mamba": "tree form"},
    "lfm2": {"ShortConv": "tree form"},
    "lfm2-vl": {"ShortConv": "tree form"},
    "lfm2_moe": {"ShortConv": "tree form"},
    "gear": {"ConvKVGatedMixer": "tree form"},
    "mamba": {"MambaBlock": "path unroll"},
    "jamba": {"JambaMambaMixer": "path unroll"},
    "rwkv7": {"Rwkv7TimeMixing": "path unroll", "Rwkv7ChannelMixing": "path unroll"},
    "recurrent_gemma": {"RecurrentBlock": "path unroll"},
    "bailing_moe_linear": {"LinearAttention": "path unroll"},
    "bailing_hybrid": {"LinearAttention": "path unroll"},
    "longcat_flash_ngram": {"NgramEmbedding": "path unroll"},
}
# Largest difference of two logits over the largest one: up to 7e-6 was seen, as between plain passes of different size.
TOLERANCE = 3e-5
PREFIX = [5, 17, 3, 88, 41, 41, 9, 23, 60, 2, 77]
NODES, DEPTH = 12, 6


@pytest.fixture(scope="module", params=MIXERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> Any:
    model = tiny_model(name)
    assert instrumented(model) == MIXERS[name]
    return model


def test_every_node_gets_the_logits_of_its_own_path_and_the_text_goes_on_from_a_commit(name: str, model: Any) -> None:
    tree = deep_tree(NODES, DEPTH, vocabulary(name), seed=5)
    cache = tree_cache(model, PREFIX)
    before = copied_all(cache)
    logits = np.array(pass_over(model, tree, cache))
    assert relative_error(logits, along_paths(model, tree, before)) < TOLERANCE

    path = tree.path(NODES - 2)
    assert path != list(range(len(path)))
    commit(cache, tree, path)
    one_by_one(model, [tree.tokens[node] for node in path], before)
    following = random.Random(name).choices(range(vocabulary(name)), k=3)
    assert relative_error(one_by_one(model, following, cache), one_by_one(model, following, before)) < TOLERANCE


@pytest.fixture(
    scope="module", params=["qwen3_next", "kimi_linear", "falcon_h1", "lfm2", "rwkv7", "longcat_flash_ngram"]
)
def one_of_each_kind(request: pytest.FixtureRequest) -> tuple[str, Any]:
    model = tiny_model(request.param)
    instrumented(model)
    return request.param, model


def test_a_chain_is_a_tree_too(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    tokens = random.Random(3).choices(range(vocabulary(name)), k=8)
    cache = tree_cache(model, PREFIX)
    before = copied_all(cache)
    logits = np.array(pass_over(model, chain_of(tokens), cache))
    assert relative_error(logits, one_by_one(model, tokens, copied_all(before))) < TOLERANCE
    commit(cache, chain_of(tokens), [0, 1, 2])
    one_by_one(model, tokens[:3], before)
    assert relative_error(one_by_one(model, [4, 5], cache), one_by_one(model, [4, 5], before)) < TOLERANCE


def test_a_text_may_start_with_a_tree(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    tree = deep_tree(NODES, DEPTH, vocabulary(name), seed=6)
    cache = tree_cache(model, [])
    logits = np.array(pass_over(model, tree, cache))
    assert relative_error(logits, along_paths(model, tree, tree_cache(model, []))) < TOLERANCE
    path = tree.path(NODES - 1)
    commit(cache, tree, path)
    plain = make_prompt_cache(model)
    one_by_one(model, [tree.tokens[node] for node in path], plain)
    assert relative_error(one_by_one(model, [7], cache), one_by_one(model, [7], plain)) < TOLERANCE


def test_several_passes_follow_one_another(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    cache, plain = tree_cache(model, PREFIX), tree_cache(model, PREFIX)
    for seed in range(4):
        tree = deep_tree(NODES, DEPTH, vocabulary(name), seed)
        pass_over(model, tree, cache)
        path = tree.path(3 * seed)
        commit(cache, tree, path)
        one_by_one(model, [tree.tokens[node] for node in path], plain)
    assert relative_error(one_by_one(model, [7], cache), one_by_one(model, [7], plain)) < TOLERANCE


def test_outside_a_pass_the_model_is_as_mlx_lm_wrote_it(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    stock = tiny_model(name)
    ours, theirs = tree_cache(model, []), make_prompt_cache(stock)
    prompt = mx.array([PREFIX])
    assert mx.array_equal(model(prompt, cache=ours), stock(prompt, cache=theirs))
    for ours_row, row in zip(one_by_one(model, [1, 2], ours), one_by_one(stock, [1, 2], theirs), strict=True):
        assert np.array_equal(ours_row, row)


def test_a_pass_of_one_thread_is_none_of_another_threads_business(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    expected = one_by_one(model, PREFIX, make_prompt_cache(model))
    found: list[Any] = []
    tree = deep_tree(len(PREFIX), DEPTH, vocabulary(name), seed=1)
    other = threading.Thread(target=lambda: found.extend(one_by_one(model, PREFIX, tree_cache(model, []))))
    with tree_pass(tree):
        other.start()
        other.join()
    assert np.array_equal(found, expected)


def test_instrumenting_a_second_time_changes_nothing(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    classes = [type(module) for module in model.modules()]

    def no_cache() -> list[Any]:
        raise AssertionError("the model ran again")

    assert instrument_mixers(model, no_cache) == MIXERS[name]
    assert [type(module) for module in model.modules()] == classes


def test_two_models_of_one_family_are_instrumented_alike(one_of_each_kind: tuple[str, Any]) -> None:
    name, model = one_of_each_kind
    another = tiny_model(name, seed=2)
    instrumented(another)
    assert [type(module) for module in another.modules()] == [type(module) for module in model.modules()]


def test_a_model_without_recurrent_layers_is_left_alone() -> None:
    model = tiny_model("llama")
    classes = [type(module) for module in model.modules()]
    assert instrumented(model) == {}
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize(
    ("name", "dtype"), [("qwen3_5", mx.bfloat16), ("falcon_h1", mx.float16), ("recurrent_gemma", mx.bfloat16)]
)
def test_a_model_of_16_bits_differs_no_more_than_rounding_does(name: str, dtype: mx.Dtype) -> None:
    model = tiny_model(name, dtype=dtype)
    instrumented(model)
    tree = deep_tree(NODES, DEPTH, vocabulary(name), seed=5)
    cache = tree_cache(model, PREFIX)
    before = copied_all(cache)
    logits = pass_over(model, tree, cache)
    assert logits.dtype == dtype
    # 2 ** -8 is the step of bfloat16; plain passes of different size differ by up to 1.1e-2 here.
    assert relative_error(logits.astype(mx.float32), along_paths(model, tree, before)) < 2e-2
