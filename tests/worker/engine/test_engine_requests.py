"""Requests of every kind to an engine over a tiny model: what is refused, and where a text ends."""

import threading
from typing import Any

import pytest
from engine_maker import EngineFor
from plain_decoding import plain_tokens
from prefix_requests import PROMPT, ids, request
from scripted_drafters import ScriptedDrafter, chain_of
from scripted_model import ScriptedModel, continuing, one_hot
from tiny_models import VOCABULARY
from toy_tokenizer import TEMPLATE, VOCABULARY_TOKENS, token_id, toy_tokenizer

from api.schemas import GenerationResult


# Errors of the request itself.
def refusal(result: GenerationResult) -> tuple[str, str]:
    assert result.error is not None
    assert result.error.status == 400
    assert result.text == ""
    assert result.token_ids == []
    assert result.finish_reason is None
    return result.error.code, result.error.message


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, context=20)
    for length in (20, 35):
        code, message = refusal(engine.generate(request(prompt="x" * length))[0])
        assert code == "context_length_exceeded"
        assert f" {length} tokens" in message
        assert " 20 " in message
    assert engine.generate(request(prompt="x" * 19))[0].usage.completion_tokens == 1  # type: ignore[union-attr]


def test_an_answer_that_does_not_fit_ends_at_the_window_with_a_note(llama: Any, engine_for: EngineFor) -> None:
    expected = plain_tokens(llama, ids(PROMPT), 10)
    drafter = ScriptedDrafter(chain_of(expected * 3, 5))
    engine = engine_for(llama, context=len(PROMPT) + 10, drafter=drafter)
    result, _ = engine.generate(request(max_tokens=10_000_000))
    assert result.token_ids == expected
    assert result.finish_reason == "length"
    (note,) = result.notes
    assert "10000000" in note
    assert " 10," in note


def test_the_default_cap_counts_when_none_is_asked_for(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, default_max_tokens=7)
    result, _ = engine.generate(request(max_tokens=None))
    assert len(result.token_ids) == 7
    assert result.finish_reason == "length"
    assert len(result.notes) == 1
    assert "default cap of 7 tokens" in result.notes[0]
    short, _ = engine_for(llama, default_max_tokens=7, context=len(PROMPT) + 3).generate(request(max_tokens=None))
    assert len(short.token_ids) == 3
    assert len(short.notes) == 1
    assert "context window" in short.notes[0]
    asked, _ = engine.generate(request(max_tokens=7))
    assert asked.notes == []


def test_an_empty_raw_prompt_needs_a_token_that_begins_a_text(llama: Any, engine_for: EngineFor) -> None:
    code, message = refusal(engine_for(llama).generate(request(prompt=""))[0])
    assert code == "empty_prompt"
    assert "empty" in message
    begins = toy_tokenizer()
    begins._tokenizer.bos_token = "!"
    result, _ = engine_for(llama, begins).generate(request(prompt=""))
    assert result.token_ids == plain_tokens(llama, ids("!"), 30)


def test_what_the_template_refuses_is_the_requests_error(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, toy_tokenizer(template=TEMPLATE))
    tool = [{"role": "tool", "content": "18C"}]
    code, message = refusal(engine.generate(request(messages=tool))[0])
    assert code == "chat_template_error"
    assert "No user query found in messages." in message
    good = engine.generate(request(messages=[{"role": "user", "content": "hi"}]))[0]
    assert good.error is None
    assert good.token_ids == plain_tokens(llama, ids("u:hi|a:"), 30)
    system = engine.generate(request(messages=[{"role": "system", "content": "hi"}]))[0]
    assert system.token_ids == plain_tokens(llama, ids("s:hi|a:"), 30)


def test_a_bare_prompt_becomes_a_message_where_there_is_a_template(llama: Any, engine_for: EngineFor) -> None:
    chat = engine_for(llama, toy_tokenizer(template=TEMPLATE))
    assert chat.generate(request(prompt="hi", raw=False))[0].token_ids == plain_tokens(llama, ids("u:hi|a:"), 30)
    assert chat.generate(request(prompt="hi", raw=True))[0].token_ids == plain_tokens(llama, ids("hi"), 30)
    plain = engine_for(llama)
    assert plain.generate(request(prompt="hi", raw=False))[0].token_ids == plain_tokens(llama, ids("hi"), 30)


def test_messages_to_a_model_without_a_template_are_refused(llama: Any, engine_for: EngineFor) -> None:
    code, message = refusal(engine_for(llama).generate(request(messages=[{"role": "user", "content": "hi"}]))[0])
    assert code == "chat_template_error"
    assert "no chat template" in message


@pytest.mark.parametrize(
    "values",
    [
        {"logit_bias": {VOCABULARY: 1.0}},
        {"logit_bias": {3: 1.0, 10**9: 1.0}},
        {"logit_bias": {-1: 5.0}},
        {"stop_token_ids": [10**9], "min_tokens": 5},
        {"stop_token_ids": [-1]},
    ],
    ids=str,
)
def test_token_ids_outside_the_vocabulary_are_refused(
    llama: Any, engine_for: EngineFor, values: dict[str, Any]
) -> None:
    engine = engine_for(llama)
    code, message = refusal(engine.generate(request(**values))[0])
    assert code == "invalid_token_id"
    assert "96" in message
    assert next(iter(values)) in message
    assert engine.generate(request())[0].token_ids == plain_tokens(llama, ids(PROMPT), 30)


def test_a_prompt_with_a_token_that_the_model_has_no_embedding_for_is_refused(
    llama: Any, engine_for: EngineFor
) -> None:
    # The tokenizer has a token more than the model, as where images are marked by one.
    engine = engine_for(llama, vocabulary=VOCABULARY - 1)
    last = VOCABULARY_TOKENS[-1]
    code, message = refusal(engine.generate(request(prompt=f"a{last}b"))[0])
    assert code == "invalid_token_id"
    assert "the prompt names token 96," in message
    assert engine.generate(request(prompt="ab"))[0].token_ids == plain_tokens(llama, ids("ab"), 30)


def test_a_thinking_budget_that_cannot_be_kept_is_noted(llama: Any, engine_for: EngineFor) -> None:
    result, _ = engine_for(llama).generate(request(thinking_budget=5))
    assert len(result.notes) == 1
    assert "thinking_budget" in result.notes[0]
    thinks = engine_for(llama, toy_tokenizer(thinks=True)).generate(request(thinking_budget=5))[0]
    assert thinks.notes == []


def test_a_model_whose_thinking_markers_are_several_tokens_is_served(llama: Any, engine_for: EngineFor) -> None:
    tokenizer = toy_tokenizer(thinks=True)
    tokenizer._think_start_tokens = (1, 5)
    engine = engine_for(llama, tokenizer)
    assert engine.generate(request())[0].token_ids == plain_tokens(llama, ids(PROMPT), 30)


# Where a text ends early.
def test_should_stop_before_anything_ends_within_the_prefill(engine_for: EngineFor) -> None:
    model = ScriptedModel(lambda _: one_hot(VOCABULARY, 5))
    engine = engine_for(model, prefill_chunk=4)
    result, stats = engine.generate(request(), should_stop=lambda: True)
    assert result.finish_reason == "cancelled"
    assert result.token_ids == []
    assert model.passes == 0
    assert stats.ttft_ms is None
    assert stats.decode_tps is None


def test_should_stop_is_asked_between_the_chunks_of_a_prefill(engine_for: EngineFor) -> None:
    model = ScriptedModel(lambda _: one_hot(VOCABULARY, 5))
    engine = engine_for(model, prefill_chunk=4)
    # It says so once only; the text must not go on over half a prompt.
    answers = iter([False, True])
    result, _ = engine.generate(request(), should_stop=lambda: next(answers, False))
    assert result.finish_reason == "cancelled"
    assert result.token_ids == []
    assert model.passes == 1
    again, _ = engine.generate(request(max_tokens=3))
    assert again.token_ids == [5, 5, 5]
    assert again.usage is not None
    assert again.usage.cached_prompt_tokens == 4


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "top_k": 1}], ids=["greedy", "sampled"])
def test_should_stop_ends_the_text_within_one_pass(engine_for: EngineFor, width: int, sampled: dict[str, Any]) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz")
    model = ScriptedModel(continuing(ids(PROMPT), wanted, VOCABULARY))
    engine = engine_for(model, drafter=ScriptedDrafter(chain_of(wanted, width)))
    at_the_call: list[int] = []
    stop = threading.Event()

    def on_tokens(_: str, count: int) -> None:
        if count >= 8:
            at_the_call.append(model.passes)
            stop.set()

    result, _ = engine.generate(request(**sampled), on_tokens=on_tokens, should_stop=stop.is_set)
    assert result.finish_reason == "cancelled"
    assert result.token_ids == wanted[:8]
    # Running ahead, one pass was queued before the last token was read; none is made after the stop.
    assert model.passes == at_the_call[0]


def test_cancelled_text_is_reported_to_its_end(engine_for: EngineFor) -> None:
    wanted = ids("xab")
    engine = engine_for(ScriptedModel(continuing(ids(PROMPT), wanted, VOCABULARY)), nodes=1)
    pieces: list[str] = []
    counts: list[int] = [0]

    def on_tokens(text: str, count: int) -> None:
        pieces.append(text)
        counts.append(count)

    result, _ = engine.generate(request(stop=["abc"]), on_tokens=on_tokens, should_stop=lambda: counts[-1] == 3)
    assert result.text == "".join(pieces) == "xab"


def test_a_stop_string_inside_the_prompt_does_not_count(engine_for: EngineFor) -> None:
    wanted = ids("efgh:i")
    engine = engine_for(ScriptedModel(continuing(ids(PROMPT), wanted, VOCABULARY)))
    # ":e" begins with the last character of the prompt.
    result, _ = engine.generate(request(stop=["prefix", ":e"], max_tokens=6))
    assert result.text == "efgh:i"
    assert result.finish_reason == "length"


def test_min_tokens_holds_every_end_back(engine_for: EngineFor) -> None:
    def logits_of(_: Any) -> list[float]:
        row = one_hot(VOCABULARY, 0)
        row[token_id("!")], row[token_id("z")] = 9.0, 5.0
        return row

    engine = engine_for(ScriptedModel(logits_of), drafter=ScriptedDrafter(chain_of(ids("z") * 30, 3)))
    values = {"min_tokens": 6, "stop_token_ids": [token_id("!")], "ignore_eos": False}
    result, _ = engine.generate(request(**values))
    assert result.text == "zzzzzz"
    assert result.finish_reason == "stop"
