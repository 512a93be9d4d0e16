"""An engine over a tiny model: what a request leaves behind, and what its result says of itself."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_maker import EngineFor
from mlx_lm.models.cache import make_prompt_cache
from plain_decoding import plain_tokens
from prefix_requests import PROMPT, ids, request
from scripted_drafters import ScriptedDrafter, chain_of, random_trees
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_tokenizer import toy_tokenizer

from api.schemas import GenerationResult
from worker.engine.recipe import derived_seed


# What stays behind.
@pytest.mark.parametrize("failing", ["drafter", "on_tokens", "should_stop"])
def test_an_exception_in_the_middle_leaves_the_engine_ready(llama: Any, engine_for: EngineFor, failing: str) -> None:
    expected = plain_tokens(llama, ids(PROMPT), 40)
    script = random_trees(expected, VOCABULARY, 3)
    armed = True

    def fail_from(place: int, counted: Callable[[], int]) -> None:
        if armed and counted() >= place:
            raise KeyError("broken")

    def drafting(emitted: int, tree: Any, limits: Any) -> None:
        script(emitted, tree, limits)
        if failing == "drafter":
            fail_from(8, lambda: emitted)

    engine = engine_for(llama, nodes=12, drafter=ScriptedDrafter(drafting))
    counts = [0]

    def on_tokens(_: str, count: int) -> None:
        counts.append(count)
        if failing == "on_tokens":
            fail_from(8, lambda: count)

    def should_stop() -> bool:
        if failing == "should_stop":
            fail_from(8, lambda: counts[-1])
        return False

    with pytest.raises(KeyError):
        engine.generate(request(max_tokens=40), on_tokens=on_tokens, should_stop=should_stop)
    armed = False
    result, _ = engine.generate(request(max_tokens=40), on_tokens=on_tokens, should_stop=should_stop)
    assert result.token_ids == expected
    assert result.usage is not None
    assert result.usage.cached_prompt_tokens == 0


def test_a_shared_prefix_is_reused_and_changes_nothing(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    prompts = [PROMPT + "first", PROMPT + "second", PROMPT, PROMPT + "second", "other"]
    shared = [0, len(PROMPT), len(PROMPT) - 1, len(PROMPT) - 1, 0]
    for prompt, cached in zip(prompts, shared, strict=True):
        result, _ = engine.generate(request(prompt=prompt))
        assert result.token_ids == plain_tokens(llama, ids(prompt), 30)
        assert result.usage is not None
        # The answer to the shorter prompt may go on as the next prompt does, by chance or not.
        assert result.usage.cached_prompt_tokens >= cached
        assert result.usage.cached_prompt_tokens < len(prompt)


def test_a_conversation_goes_on_from_its_last_answer(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    first, _ = engine.generate(request(max_tokens=12))
    assert all(token > 2 for token in first.token_ids)
    longer = PROMPT + first.text + "?more"
    second, _ = engine.generate(request(prompt=longer))
    assert second.token_ids == plain_tokens(llama, ids(longer), 30)
    assert second.usage is not None
    # All but the last token of the answer, which was pending.
    assert second.usage.cached_prompt_tokens == len(PROMPT) + 11


@pytest.mark.parametrize("width", [0, 6])
def test_after_a_stop_string_the_session_stands_at_the_last_kept_token(engine_for: EngineFor, width: int) -> None:
    wanted = ids("abc!defgh")
    model = ScriptedModel(continuing(ids(PROMPT), wanted, VOCABULARY))
    engine = engine_for(model, drafter=ScriptedDrafter(chain_of(wanted, width)))
    result, _ = engine.generate(request(stop=["c!d"]))
    assert result.text == "ab"
    assert result.matched_stop == "c!d"
    # A prompt that goes on as the cut text did shares no more than what was kept.
    again, _ = engine.generate(request(prompt=PROMPT + "abc!defgh", max_tokens=1))
    assert again.usage is not None
    assert again.usage.cached_prompt_tokens == len(PROMPT) + 2


def test_engines_over_one_model_keep_apart(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    other = engine.with_options(engine.options)
    engine.generate(request())
    result, _ = other.generate(request())
    assert result.usage is not None
    assert result.usage.cached_prompt_tokens == 0


# What a result says of itself.
@pytest.mark.parametrize("values", [{}, {"temperature": 0.9, "seed": 4}, {"frequency_penalty": 0.5}], ids=str)
def test_logprobs_are_those_of_the_model(llama: Any, engine_for: EngineFor, values: dict[str, Any]) -> None:
    expected = plain_tokens(llama, ids(PROMPT), 40)
    engine = engine_for(llama, nodes=12, drafter=ScriptedDrafter(random_trees(expected, VOCABULARY, 1)))
    result, _ = engine.generate(request(logprobs=True, top_logprobs=4, **values))
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == result.token_ids
    logits = np.array(llama(mx.array([[*ids(PROMPT), *result.token_ids]]), cache=make_prompt_cache(llama))[0])
    tokens = [*ids(PROMPT), *result.token_ids]
    for place, entry in enumerate(result.logprobs):
        row = logits[len(PROMPT) - 1 + place].astype(np.float64)
        for token in tokens[: len(PROMPT) + place][-20:]:
            row[token] -= values.get("frequency_penalty", 0.0)
        row -= np.logaddexp.reduce(row)
        assert entry.logprob == pytest.approx(row[entry.token_id], abs=1e-4)
        assert entry.token == engine.target.tokenizer.decode([entry.token_id])
        best = np.argsort(-row)[:4]
        assert [rival.logprob for rival in entry.top] == pytest.approx(row[best].tolist(), abs=1e-4)
        assert [rival.token_id for rival in entry.top] == best.tolist()


def test_logprobs_of_a_forced_token_survive_json(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, toy_tokenizer(thinks=True))
    values = {"prompt": "<think>", "thinking_budget": 3, "logprobs": True, "top_logprobs": 5}
    result, _ = engine.generate(request(**values, logit_bias={1: -50.0, 2: -50.0}))
    assert result.logprobs is not None
    assert result.token_ids[3] == 2
    forced = result.logprobs[3]
    assert forced.logprob == 0.0
    assert [rival.token_id for rival in forced.top] == [2]
    assert GenerationResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("width", [0, 4])
def test_phases_add_up_to_the_wall(llama: Any, engine_for: EngineFor, width: int) -> None:
    expected = plain_tokens(llama, ids(PROMPT), 60)
    engine = engine_for(llama, drafter=ScriptedDrafter(chain_of(expected, width)))
    result, stats = engine.generate(request(max_tokens=60))
    phases = stats.phases.model_dump()
    assert all(spent >= 0 for spent in phases.values())
    assert sum(phases.values()) == pytest.approx(stats.wall_ms, rel=1e-9)
    assert phases["prefill"] > 0
    assert phases["verify"] > 0
    assert phases["other"] < stats.wall_ms / 2
    assert stats.ttft_ms is not None
    assert phases["prefill"] < stats.ttft_ms < stats.wall_ms
    # What the first pass brought had come when its time was taken.
    assert stats.first_pass_tokens == 1 + width
    assert stats.decode_tps == pytest.approx((59 - width) / (stats.wall_ms - stats.ttft_ms) * 1000)
    assert stats.e2e_tps == pytest.approx(60 / stats.wall_ms * 1000)
    assert sum(nodes * count for nodes, count in stats.budgets.items()) == stats.drafted_tokens + stats.passes
    assert sum(stats.budgets.values()) == stats.passes
    assert len(result.token_ids) == stats.accepted_tokens + stats.passes
    assert stats.peak_memory_bytes > 0
    assert (stats.model, stats.drafter, stats.verification) == ("tiny", "scripted", "tree")


def test_sampling_values_come_with_their_source(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, generation_defaults={"temperature": 0.6, "top_p": 0.9, "top_k": 5})
    result, _ = engine.generate(request(top_p=0.5))
    shown = {name: (value.value, value.source) for name, value in result.sampling.items()}
    assert shown["temperature"] == (0.6, "model")
    assert shown["top_p"] == (0.5, "request")
    assert shown["top_k"] == (5, "model")
    assert shown["min_p"] == (0.0, "default")
    assert shown["seed"] == (derived_seed("r-1"), "default")
    named = engine.generate(request(top_p=0.5, temperature=0.6, top_k=5, seed=derived_seed("r-1")))[0]
    assert named.token_ids == result.token_ids
    assert engine.generate(request(top_p=0.5, request_id="r-2"))[0].token_ids != result.token_ids


def test_a_text_that_loops_is_told_by_its_repetition(engine_for: EngineFor) -> None:
    loop = ids("abc" * 20)
    engine = engine_for(ScriptedModel(continuing(ids(PROMPT), loop, VOCABULARY)))
    _, stats = engine.generate(request(max_tokens=60))
    # 55 six-grams, three of them different.
    assert stats.repetition == pytest.approx(52 / 55)
