"""Whole models with recurrent layers: a pass over a tree against one-token decoding down every path, and what follows."""

import random
import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from bench.families import tiny_model, vocabulary
from mlx_lm.models.cache import make_prompt_cache
from recurrent_passes import (
    abandon,
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
