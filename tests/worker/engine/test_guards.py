"""Limits that end a text early: the time of a request, and a text that repeats itself."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor
from scripted_drafters import ScriptedDrafter, chain_of
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_clock import ToyClock
from toy_requests import PROMPT_IDS, WIDTHS, answer, assert_agrees, held, ids, request
from toy_tokenizer import toy_tokenizer

PATHS = [
    pytest.param(0, {"temperature": 1.0, "top_k": 1}, id="plain steps"),
    pytest.param(3, {}, id="trees"),
    pytest.param(3, {"temperature": 1.0, "top_k": 1}, id="sampled trees"),
]


class SlowModel(ScriptedModel):
    """Every pass takes a second of the clock."""

    def __init__(self, text: Sequence[int], clock: ToyClock, prompt: Sequence[int] = PROMPT_IDS) -> None:
        super().__init__(continuing(prompt, text, VOCABULARY))
        self.clock = clock

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.clock.now += 1
        return super().__call__(inputs, cache)


# Time.
@pytest.mark.parametrize(("width", "values"), PATHS)
def test_the_text_ends_with_the_pass_in_which_its_time_is_over(
    engine_for: EngineFor, width: int, values: dict[str, Any]
) -> None:
    wanted, clock = ids("abcdefghijklmnopqrstuvwxyz"), ToyClock()
    model = SlowModel(wanted, clock)
    engine = engine_for(model, drafter=ScriptedDrafter(chain_of(wanted, width)))
    engine.clock = clock
    pieces: list[str] = []
    result, stats = engine.generate(
        request(max_tokens=26, max_seconds=4.5, logprobs=True, **values), on_tokens=lambda text, _: pieces.append(text)
    )
    # One pass for the prompt, then four until 4.5 s are over.
    kept = 4 * (width + 1)
    assert result.finish_reason == "time_limit"
    assert result.text == "".join(pieces) == "abcdefghijklmnopqrstuvwxyz"[:kept]
    assert_agrees(result, wanted[:kept])
    assert model.passes == 1 + stats.passes == 5
    assert len(result.notes) == 1
    assert "max_seconds 4.5 " in result.notes[0]
    assert held(engine) == [*PROMPT_IDS, *wanted[: kept - 1]]
    assert answer(engine, max_tokens=26).text == "abcdefghijklmnopqrstuvwxyz"


def test_running_ahead_has_at_most_one_pass_under_way_when_the_time_is_over(engine_for: EngineFor) -> None:
    wanted, clock = ids("abcdefghijklmnopqrstuvwxyz"), ToyClock()
    model = SlowModel(wanted, clock)
    engine = engine_for(model, nodes=1)
    engine.clock = clock
    result, _ = engine.generate(request(max_tokens=26, max_seconds=4.5))
    assert result.finish_reason == "time_limit"
    # The pass for the prompt, three that gave a token, and the one that was queued before the last was read.
    assert model.passes == 5
    assert_agrees(result, wanted[:3])
    assert held(engine) == [*PROMPT_IDS, *wanted[:3]]


def test_the_time_is_looked_at_between_the_chunks_of_a_prefill(engine_for: EngineFor) -> None:
    prompt, clock = "p" * 40, ToyClock()
    model = SlowModel(ids("abc"), clock, ids(prompt))
    engine = engine_for(model, prefill_chunk=4)
    engine.clock = clock
    result, stats = engine.generate(request(prompt=prompt, max_seconds=2))
    assert result.finish_reason == "time_limit"
    assert result.token_ids == []
    assert model.passes == 2
    assert stats.ttft_ms is None
    # What is in the cache by then is used by the next try.
    again = answer(engine, prompt=prompt, max_tokens=3)
    assert again.text == "abc"
    assert again.usage is not None
    assert again.usage.cached_prompt_tokens == 8


def test_the_time_before_the_prefill_counts(engine_for: EngineFor) -> None:
    clock = ToyClock()
    model = SlowModel(ids("abc"), clock)
    tokenizer = toy_tokenizer()
    engine = engine_for(model, tokenizer)
    engine.clock = clock
    encode = tokenizer._tokenizer.encode

    def slow_encode(*arguments: Any, **options: Any) -> list[int]:
        clock.now += 10
        tokens: list[int] = encode(*arguments, **options)
        return tokens

    tokenizer._tokenizer.encode = slow_encode
    result = answer(engine, max_seconds=10)
    assert (result.finish_reason, result.token_ids) == ("time_limit", [])
    assert model.passes == 0


def test_a_text_that_ends_in_the_last_pass_ends_by_its_own_rule(engine_for: EngineFor) -> None:
    wanted, clock = ids("abcd"), ToyClock()
    engine = engine_for(SlowModel(wanted, clock), drafter=ScriptedDrafter(chain_of(wanted, 3)))
    engine.clock = clock
    result = answer(engine, max_tokens=4, max_seconds=2)
    assert result.finish_reason == "length"
    assert result.notes == []


def test_what_was_held_back_is_reported_when_the_time_is_over(engine_for: EngineFor) -> None:
    wanted, clock = ids("xabxyz"), ToyClock()
    engine = engine_for(SlowModel(wanted, clock), nodes=1)
    engine.clock = clock
    pieces: list[str] = []
    values = {"max_tokens": 9, "stop": ["abc"], "max_seconds": 4, "temperature": 1.0, "top_k": 1}
    result, _ = engine.generate(request(**values), on_tokens=lambda text, _: pieces.append(text))
    assert result.text == "".join(pieces) == "xab"


def test_the_time_is_that_of_all_choices(engine_for: EngineFor) -> None:
    wanted, clock = ids("abcdefgh"), ToyClock()
    model = SlowModel(wanted, clock)
    engine = engine_for(model, drafter=ScriptedDrafter(chain_of(wanted, 3)))
    engine.clock = clock
    result, _ = engine.generate(request(n=5, max_tokens=8, max_seconds=4, temperature=1.0, top_k=1))
    # The prompt, two passes for the first choice, one for the second.
    assert [choice.finish_reason for choice in result.choices] == ["length", "time_limit"]
    assert [choice.text for choice in result.choices] == ["abcdefgh", "abcd"]
    assert not result.cancelled
    (note,) = result.notes
    assert "max_seconds 4 " in note
    assert "3 of 5 choices were not begun" in note


# Repetition. In a loop of three letters, 1 - 3 / g of g six-grams are repeated.
LOOP = ids("abc" * 60)
FRESH = list(range(20, 90))


@pytest.mark.parametrize("width", [0, *WIDTHS, 15])
@pytest.mark.parametrize("values", [{}, {"temperature": 1.0, "top_k": 1}], ids=["greedy", "sampled"])
def test_a_text_that_loops_ends_at_the_same_token_for_every_size_of_a_pass(
    engine_for: EngineFor, values: dict[str, Any], width: int
) -> None:
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, LOOP, VOCABULARY)), drafter=ScriptedDrafter(chain_of(LOOP, width))
    )
    pieces: list[str] = []
    result, stats = engine.generate(
        request(max_tokens=180, max_repetition=0.95, logprobs=True, **values),
        on_tokens=lambda text, _: pieces.append(text),
    )
    # 1 - 3 / g exceeds 0.95 from g = 61 on, and 61 six-grams are 66 tokens.
    assert result.finish_reason == "repetition"
    assert result.matched_stop is None
    assert result.text == "".join(pieces) == "abc" * 22
    assert_agrees(result, LOOP[:66])
    assert held(engine) in ([*PROMPT_IDS, *LOOP[:66]], [*PROMPT_IDS, *LOOP[:65]])
    (note,) = result.notes
    assert "max_repetition 0.95 " in note
    assert stats.repetition == pytest.approx(1 - 3 / 61)
    assert stats.longest_repeat == 63


@pytest.mark.parametrize("width", [0, 3])
def test_a_loop_after_other_text_ends_when_it_prevails_among_the_latest_tokens(
    engine_for: EngineFor, width: int
) -> None:
    text = [*FRESH, *LOOP]
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, text, VOCABULARY)), drafter=ScriptedDrafter(chain_of(text, width))
    )
    result = answer(engine, max_tokens=250, max_repetition=0.5)
    # Of t tokens, t - 5 six-grams: 65 of the first text, 5 across the border, 3 of the loop, t - 78 repeated ones.
    # (t - 78) / (t - 5) exceeds one half from t = 152 on.
    assert result.finish_reason == "repetition"
    assert_agrees(result, text[:152])


@pytest.mark.parametrize("limit", [None, 1.0, 0.95])
def test_a_loop_within_the_limit_goes_on(engine_for: EngineFor, limit: float | None) -> None:
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, LOOP, VOCABULARY)))
    result = answer(engine, max_tokens=65, max_repetition=limit)
    assert result.finish_reason == "length"
    assert result.notes == []


def test_a_stop_comes_before_repetition_and_repetition_before_the_cap(engine_for: EngineFor) -> None:
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, LOOP, VOCABULARY)))
    # The first 64 tokens are the first that are looked at, and they repeat enough.
    stopped = answer(engine, max_tokens=90, max_repetition=0.9, stop=["abc" * 21 + "a"])
    assert (stopped.finish_reason, stopped.text) == ("stop", "")
    capped = answer(engine, max_tokens=64, max_repetition=0.9)
    assert (capped.finish_reason, len(capped.token_ids)) == ("repetition", 64)
    short = answer(engine, max_tokens=63, max_repetition=0.9)
    assert (short.finish_reason, len(short.token_ids)) == ("length", 63)


def test_every_choice_is_looked_at_by_itself(engine_for: EngineFor) -> None:
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, LOOP, VOCABULARY)))
    result, _ = engine.generate(request(n=2, max_tokens=180, max_repetition=0.9, temperature=1.0, top_k=1))
    assert [choice.finish_reason for choice in result.choices] == ["repetition"] * 2
    assert [len(choice.token_ids) for choice in result.choices] == [64, 64]
    assert len(result.notes) == 1
