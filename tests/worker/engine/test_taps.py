"""Taps record what decoder blocks and the final norm put out, and run the target's embedding and head."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from bench.families import tiny_model
from worker.engine.verify.taps import Taps

TOKENS = mx.array([[5, 17, 3, 88]])
# Targets of published drafters: plain, hybrid, windows with scaled embeddings and capped logits, wrapped.
FAMILIES = ["llama", "qwen3", "qwen3_5", "qwen3_5_moe", "gemma4_text", "gemma4", "gemma2", "mistral3"]


def recorded(model: Any, taps: Taps) -> tuple[mx.array, mx.array]:
    """The logits of TOKENS, and what the taps recorded."""
    with taps.recording():
        logits = model(TOKENS, cache=make_prompt_cache(model))[0]
    assert taps.hidden is not None
    return logits, taps.hidden


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_the_recorded_states_gives_the_logits(family: str) -> None:
    model = tiny_model(family)
    untapped = model(TOKENS, cache=make_prompt_cache(model))[0]
    taps = Taps(model, normed=True)
    logits, hidden = recorded(model, taps)
    assert mx.array_equal(logits, untapped)
    assert mx.allclose(taps.head(hidden), logits, atol=1e-5)


def test_blocks_are_recorded_in_the_order_asked_for() -> None:
    model = tiny_model("llama")
    cache = make_prompt_cache(model)
    expected, h = [], model.model.embed_tokens(TOKENS)
    for layer, layer_cache in zip(model.layers, cache, strict=True):
        h = layer(h, "causal", layer_cache)
        expected.append(h[0])
    _, hidden = recorded(model, Taps(model, blocks=(2, 0), normed=True))
    wanted = mx.concatenate([expected[2], expected[0], model.model.norm(h)[0]], axis=-1)
    assert mx.allclose(hidden, wanted, atol=1e-6)


def test_two_taps_of_one_model_record_each_their_own() -> None:
    model = tiny_model("llama")
    first, second = Taps(model, blocks=(0,)), Taps(model, blocks=(1,))
    _, zero = recorded(model, first)
    _, one = recorded(model, second)
    assert not mx.allclose(zero, one)
    assert mx.array_equal(recorded(model, first)[1], zero)


def test_embeddings_are_the_targets_own() -> None:
    model = tiny_model("gemma4_text")
    assert mx.array_equal(Taps(model).embed(TOKENS[0]), model.model.embed_tokens(TOKENS)[0])


def test_a_block_that_is_not_there_and_a_model_built_otherwise_are_told() -> None:
    with pytest.raises(ValueError, match="no decoder block 3: it has 3"):
        Taps(tiny_model("llama"), blocks=(3,))
    for family in ("gpt2", "plamo"):
        with pytest.raises(ValueError, match="no inner module"):
            Taps(tiny_model(family))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("iquestloopcoder", "runs the parts of its decoder blocks one by one"),
        ("gemma3n", "several streams of hidden states"),
    ],
)
def test_a_check_says_where_blocks_put_out_no_row_per_token(family: str, message: str) -> None:
    Taps(tiny_model("llama"), blocks=(0, 2), normed=True).check()
    with pytest.raises(ValueError, match=message):
        Taps(tiny_model(family), blocks=(0,)).check()


def test_joined_taps_record_one_after_the_other() -> None:
    model = tiny_model("llama")
    first, second = Taps(model, blocks=(2,), normed=True), Taps(model, blocks=(0, 2))
    _, one = recorded(model, first)
    _, two = recorded(model, second)
    whole = first.joined(second)
    assert whole.states == first.states + second.states == 4
    assert mx.array_equal(recorded(model, whole)[1], mx.concatenate([one, two], axis=-1))
