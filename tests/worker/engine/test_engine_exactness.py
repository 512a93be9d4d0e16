"""The whole engine on tiny models: its text is mlx-lm's plain decoding, whatever is drafted and verified."""

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_maker import EngineFor
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, chain_of, random_trees
from tiny_models import ATTENTION_FAMILIES, VOCABULARY, tiny_model
from toy_tokenizer import token_id

from api.schemas import GenerationRequest
from worker.engine.budget import CostCurve
from worker.engine.engine import Engine
from worker.engine.profile import Profile, Profiles, measure_profile
from worker.engine.sampling import Sampling

PROMPT = "The-quick-brown-fox:the-quick"
PROMPT_IDS = [token_id(character) for character in PROMPT]
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 20, "seed": 7}


def request(**values: Any) -> GenerationRequest:
    base = {"request_id": "r-1", "prompt": PROMPT, "raw": True, "ignore_eos": True}
    return GenerationRequest.model_validate({**base, **values})


def assert_cache_is_cold(engine: Engine, tokens: list[int]) -> None:
    """The session holds `tokens`, and its cache what one-token passes over them leave."""
    assert engine._session.tokens == tokens
    cold = make_prompt_cache(engine.target.model)
    for token in tokens:
        engine.target.model(mx.array([[token]]), cache=cold)
    for layer, expected in zip(engine._session.cache, cold, strict=True):
        assert layer.offset == expected.offset == len(tokens)
        for got, wanted in ((layer.keys, expected.keys), (layer.values, expected.values)):
            np.testing.assert_allclose(
                np.array(got[..., : layer.offset, :]), np.array(wanted[..., : layer.offset, :]), rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("family", ATTENTION_FAMILIES)
def test_greedy_text_is_that_of_plain_decoding_under_adversarial_trees(engine_for: EngineFor, family: str) -> None:
    model = tiny_model(family)
    expected = plain_tokens(model, PROMPT_IDS, 150)
    assert len(set(expected)) > 15
    for nodes, seed in ((32, 0), (32, 1), (7, 2), (3, 3)):
        drafter = ScriptedDrafter(random_trees(expected, VOCABULARY, seed))
        engine = engine_for(model, nodes=nodes, drafter=drafter)
        result, stats = engine.generate(request(max_tokens=120))
        assert result.token_ids == expected[:120]
        assert stats.accepted_tokens > 20
        assert stats.drafted_tokens > stats.accepted_tokens
        assert_cache_is_cold(engine, [*PROMPT_IDS, *expected[:119]])


def test_trees_reach_their_full_depth(llama: Any, engine_for: EngineFor) -> None:
    expected = plain_tokens(llama, PROMPT_IDS, 120)
    engine = engine_for(llama, nodes=17, drafter=ScriptedDrafter(chain_of(expected, 16)))
    result, stats = engine.generate(request(max_tokens=102))
    assert result.token_ids == expected[:102]
    assert stats.passes == 6
    assert stats.budgets == {17: 6}


@pytest.fixture(scope="module")
def sampled_text(llama: Any) -> list[int]:
    text = plain_tokens(llama, PROMPT_IDS, 60, sampling=Sampling(**SAMPLED))  # type: ignore[arg-type]
    assert text != plain_tokens(llama, PROMPT_IDS, 60)
    return text


@pytest.mark.parametrize("nodes", range(1, 17))
def test_sampled_text_is_the_same_for_every_budget(
    llama: Any, engine_for: EngineFor, sampled_text: list[int], nodes: int
) -> None:
    expected = sampled_text
    drafter = ScriptedDrafter(random_trees(expected, VOCABULARY, nodes))
    engine = engine_for(llama, nodes=nodes, drafter=drafter)
    result, stats = engine.generate(request(max_tokens=50, **SAMPLED))
    assert result.token_ids == expected[:50]
    assert (stats.accepted_tokens > 0) == (nodes > 1)


@pytest.mark.parametrize("family", ATTENTION_FAMILIES)
def test_sampled_text_is_that_of_plain_decoding_on_every_family(engine_for: EngineFor, family: str) -> None:
    model = tiny_model(family)
    values = {"temperature": 1.3, "min_p": 0.02, "seed": 2**63 + 5}
    expected = plain_tokens(model, PROMPT_IDS, 60, sampling=Sampling(**values))  # type: ignore[arg-type]
    drafter = ScriptedDrafter(random_trees(expected, VOCABULARY, 5))
    result, _ = engine_for(model, nodes=24, drafter=drafter).generate(request(max_tokens=60, **values))
    assert result.token_ids == expected


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"logit_bias": {token_id("a"): -100.0, token_id("b"): 3.0}},
        {"repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {9: 2.0}},
    ],
    ids=lambda penalties: "+".join(penalties),
)
def test_penalised_text_is_that_of_plain_decoding_with_mlx_lm_s_processors(
    llama: Any, engine_for: EngineFor, penalties: dict[str, Any], temperature: float
) -> None:
    sampled = {"temperature": temperature, "min_p": 0.05, "seed": 3}
    expected = plain_tokens(
        llama,
        PROMPT_IDS,
        80,
        sampling=Sampling(**sampled),  # type: ignore[arg-type]
        processors=make_logits_processors(**penalties),
    )
    assert expected != plain_tokens(llama, PROMPT_IDS, 80, sampling=Sampling(**sampled))  # type: ignore[arg-type]
    for seed in range(3):
        drafter = ScriptedDrafter(random_trees(expected, VOCABULARY, seed))
        engine = engine_for(llama, nodes=24, drafter=drafter)
        result, stats = engine.generate(request(max_tokens=70, **sampled, **penalties))
        assert result.token_ids == expected[:70]
        assert stats.accepted_tokens > 10


def test_the_penalty_window_is_the_requests_own(llama: Any, engine_for: EngineFor) -> None:
    texts = {}
    for size in (5, 60):
        sizes = {f"{kind}_context_size": size for kind in ("repetition", "presence", "frequency")}
        processors = make_logits_processors(frequency_penalty=1.0, **sizes)
        texts[size] = plain_tokens(llama, PROMPT_IDS, 60, processors=processors)
        drafter = ScriptedDrafter(random_trees(texts[size], VOCABULARY, 1))
        values = {"frequency_penalty": 1.0, "penalty_context_size": size}
        result, _ = engine_for(llama, nodes=16, drafter=drafter).generate(request(max_tokens=60, **values))
        assert result.token_ids == texts[size]
    assert texts[5] != texts[60]


def test_the_suffix_drafter_and_a_budget_from_a_curve_change_nothing(llama: Any, engine_for: EngineFor) -> None:
    # Copying text: a biased model that alternates, so that the suffix drafter has something to find.
    bias = {token_id(character): 6.0 for character in "the-quick"}
    expected = plain_tokens(llama, PROMPT_IDS, 120, processors=make_logits_processors(logit_bias=bias))
    engine = engine_for(llama, curve=CostCurve((1, 4, 16), (1.0, 1.2, 2.0)))
    result, stats = engine.generate(request(max_tokens=120, logit_bias=bias))
    assert result.token_ids == expected
    assert stats.accepted_tokens > 0
    assert len(stats.budgets) > 2


@pytest.mark.parametrize("chunk", [1, 5, 2048])
def test_a_long_prompt_in_chunks(llama: Any, engine_for: EngineFor, chunk: int) -> None:
    expected = plain_tokens(llama, PROMPT_IDS, 20)
    result, _ = engine_for(llama, prefill_chunk=chunk).generate(request(max_tokens=20))
    assert result.token_ids == expected


def test_a_prompt_of_one_token(llama: Any, engine_for: EngineFor) -> None:
    result, _ = engine_for(llama).generate(request(prompt="x", max_tokens=20))
    assert result.token_ids == plain_tokens(llama, [token_id("x")], 20)


@pytest.mark.parametrize("end_at", [0, 1, 17])
@pytest.mark.parametrize("ending", ["cap", "stop token", "cancel"])
def test_running_ahead_ends_with_the_right_cache(llama: Any, engine_for: EngineFor, ending: str, end_at: int) -> None:
    # Greedy and without drafts, a pass is always under way when the text ends.
    expected = plain_tokens(llama, PROMPT_IDS, 40)
    end_at = next(place for place in range(end_at, 40) if expected[place] not in expected[:place])
    engine = engine_for(llama, nodes=1)
    values: dict[str, Any] = {"max_tokens": 40}
    if ending == "cap":
        values["max_tokens"] = end_at + 1
    if ending == "stop token":
        values["stop_token_ids"] = [expected[end_at]]
    counts = [0]
    result, stats = engine.generate(
        request(**values),
        on_tokens=lambda _, count: counts.append(count),
        should_stop=lambda: ending == "cancel" and counts[-1] > end_at,
    )
    kept = end_at if ending == "stop token" else end_at + 1
    assert result.token_ids == expected[:kept]
    assert stats.budgets == {1: stats.passes}
    # Of a cancelled text the pass under way has put the last token into the cache. No pass follows a cap, and a token
    # that ends the text is dropped again.
    assert_cache_is_cold(engine, [*PROMPT_IDS, *expected[: end_at + 1 if ending == "cancel" else end_at]])


@pytest.mark.parametrize(
    ("family", "mode", "refused"),
    [
        ("qwen3_5", "tree", ""),
        ("deepseek_v41", "chain", "tree verification has no form"),
        ("phi3small", "plain", "chain"),
    ],
)
def test_a_family_is_served_as_the_selfcheck_says(engine_for: EngineFor, family: str, mode: str, refused: str) -> None:
    model = tiny_model(family)
    notices: list[str] = []
    profile = measure_profile(engine_for(model, mode="plain").target, 4, notices.append)
    assert profile.verification == mode
    assert profile.curve.nodes == ((1,) if mode == "plain" else (1, 2, 3, 4))
    verdicts = [notice for notice in notices if "is verified in" in notice]
    assert [refused in verdict for verdict in verdicts] == ([] if mode == "tree" else [True])
    engine = engine_for(model, mode=profile.verification, curve=profile.curve)
    for prompt in (PROMPT, PROMPT + "!", "x", PROMPT):
        ids = [token_id(character) for character in prompt]
        greedy, stats = engine.generate(request(prompt=prompt, max_tokens=40))
        assert greedy.token_ids == plain_tokens(model, ids, 40)
        sampled, _ = engine.generate(request(prompt=prompt, max_tokens=20, **SAMPLED))
        assert sampled.token_ids == plain_tokens(model, ids, 20, sampling=Sampling(**SAMPLED))  # type: ignore[arg-type]
        assert stats.verification == mode
        assert stats.drafter == ("none" if mode == "plain" else "suffix")
        assert mode != "plain" or stats.acceptance is None


def test_a_measured_profile_is_stored_and_read_back(llama: Any, engine_for: EngineFor, tmp_path: Any) -> None:
    target = engine_for(llama).target
    notices: list[str] = []

    def find() -> Profile:
        return Profiles(tmp_path / "profiles", target, 4, notices.append).find()

    def measurements() -> int:
        return sum("(once per model)" in notice for notice in notices)

    profile = find()
    assert profile.verification == "tree"
    assert profile.curve.nodes == (1, 2, 3, 4)
    assert list(profile.curve.milliseconds) == sorted(profile.curve.milliseconds)
    assert profile.curve.milliseconds[0] > 0
    assert measurements() == 1
    assert find() == profile
    assert measurements() == 1
    (file,) = (tmp_path / "profiles").glob("*.json")
    key = json.loads(file.read_text())["key"]
    assert (key["identity"], key["quantization"], key["max_nodes"]) == ("tiny", "float32", 4)
    file.write_text("{")
    assert find().verification == "tree"
    assert measurements() == 2
