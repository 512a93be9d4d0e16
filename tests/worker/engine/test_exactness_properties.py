"""Property: whatever is asked, drafted and reused, the text is that of plain decoding from a cold start.

The examples are the same in every run of the suite; `make soak-exactness` tries many more, and other ones each time.
"""

import os
from functools import cache
from typing import Any

import mlx.core as mx
from engine_maker import EngineFor
from family_exactness import Case, engine_under_trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_tokenizer import VOCABULARY_TOKENS

from bench.families.models import tiny_model, vocabulary
from worker.engine.verify.selfcheck import decide_mode
from worker.engine.verify.verifier import Mode

SOAK = int(os.environ.get("SOAK_EXAMPLES", "0"))
EXAMPLES = SOAK or 40
TOKENS = 200 if SOAK else 60
# One of each mechanism: rows, windows with and without sinks, shared rows, latent rows, each kind of recurrent state,
# experts, learned positions, chunks.
FAMILIES = (
    "llama",
    "qwen3_moe",
    "gemma3_text",
    "gemma3n",
    "gpt_oss",
    "afm7",
    "deepseek_v3",
    "qwen3_5",
    "qwen3_next",
    "nemotron_h",
    "falcon_h1",
    "lfm2",
    "rwkv7",
    "recurrent_gemma",
    "gpt2",
    "llama4",
)

characters = st.sampled_from(VOCABULARY_TOKENS[3:])
prompts = st.text(characters, min_size=1, max_size=40)
biases = st.dictionaries(st.integers(0, len(VOCABULARY_TOKENS) - 1), st.floats(-6, 6, width=16), max_size=3)
samplings = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.7, 1.6),
        "presence_penalty": st.floats(-1, 2),
        "frequency_penalty": st.floats(-0.5, 2),
        "penalty_context_size": st.integers(1, 64),
        "logit_bias": biases,
    },
)
draws = st.fixed_dictionaries(
    {"temperature": st.floats(0.3, 1.8), "seed": st.integers(0, 2**64 - 1)},
    optional={
        "top_p": st.floats(0.3, 1, exclude_max=True),
        "top_k": st.integers(1, 60),
        "min_p": st.floats(0.01, 0.3),
    },
)
recipes = st.one_of(samplings, st.builds(lambda one, other: {**one, **other}, samplings, draws))


@cache
def model_and_mode(family: str) -> tuple[Any, Mode]:
    model = tiny_model(family)
    return model, decide_mode(model, vocabulary(family), mx.float32).mode


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    family=st.sampled_from(FAMILIES),
    prompt=prompts,
    endings=st.lists(prompts, min_size=1, max_size=3),
    recipe=recipes,
    nodes=st.integers(1, 32),
    chunk=st.sampled_from([3, 16, 2048]),
    seed=st.integers(0, 2**16),
)
def test_the_text_is_that_of_plain_decoding_from_a_cold_start(
    engine_for: EngineFor,
    family: str,
    prompt: str,
    endings: list[str],
    recipe: dict[str, Any],
    nodes: int,
    chunk: int,
    seed: int,
) -> None:
    model, mode = model_and_mode(family)
    engine = None
    for number, ending in enumerate(["", *endings]):
        case = Case(prompt + ending, TOKENS, recipe)
        expected = case.plain(model)
        # The engine, and so its caches, goes on from request to request; the drafts know each text.
        following = engine_under_trees(engine_for, model, mode, expected, seed + number, nodes, chunk)
        engine = engine or following
        engine.drafter = following.drafter
        result, _ = engine.generate(case.request)
        assert result.token_ids == expected
