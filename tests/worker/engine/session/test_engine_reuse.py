"""The engine's answers with snapshots of earlier prompts: the same text, and an honest count of what was reused."""

from typing import Any

import pytest
from engine_maker import EngineFor
from plain_decoding import plain_tokens
from prefix_requests import PROMPT, ids, request
from toy_tokenizer import text_of

from bench.families import tiny_model
from worker.engine.engine import Engine

SYSTEM = "you-are-a-careful-clerk-of-a-reading-room-and-answer-briefly:"
OTHER = "another-system-prompt-that-nobody-else-shares-in-this-batch-of-ours:"
PROMPTS = [
    SYSTEM + "when-do-you-open?-I-come-from-far-away-by-train.",
    SYSTEM + "may-I-bring-a-dog-that-is-small-and-never-barks?",
    OTHER + "who?",
    SYSTEM + "is-there-tea?",
    SYSTEM + "when-do-you-open?-I-come-from-far-away-by-train.",
]
SHARED, WHOLE = len(SYSTEM), len(PROMPTS[0]) - 1


def cached(engine: Engine, prompt: str, expected: list[int], **values: Any) -> int:
    result, _ = engine.generate(request(prompt=prompt, max_tokens=len(expected), **values))
    assert result.token_ids == expected
    assert result.usage is not None
    assert result.usage.prompt_tokens == len(prompt)
    return result.usage.cached_prompt_tokens


@pytest.mark.parametrize(
    ("family", "mode", "reused"),
    [
        ("llama", "tree", [0, SHARED, 0, SHARED, WHOLE]),
        ("gemma3_text", "tree", [0, 0, 0, SHARED, WHOLE]),
        ("lfm2", "tree", [0, 0, 0, SHARED, WHOLE]),
        ("deepseek_v41", "chain", [0, 0, 0, SHARED, WHOLE]),
    ],
)
def test_prompts_that_take_turns_keep_what_they_share(
    engine_for: EngineFor, family: str, mode: str, reused: list[int]
) -> None:
    model = tiny_model(family)
    engine = engine_for(model, mode=mode, nodes=8)
    for prompt, count in zip(PROMPTS, reused, strict=True):
        assert cached(engine, prompt, plain_tokens(model, ids(prompt), 12)) == count


def test_without_snapshots_only_the_last_request_is_reused(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, prefix_cache_bytes=0)
    for prompt, count in zip(PROMPTS, [0, SHARED, 0, 0, SHARED], strict=True):
        assert cached(engine, prompt, plain_tokens(llama, ids(prompt), 12)) == count


def test_an_exception_in_a_request_leaves_the_snapshots(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    expected = plain_tokens(llama, ids(PROMPTS[0]), 12)
    cached(engine, PROMPTS[0], expected)

    def fails(*_: Any) -> None:
        raise RuntimeError("the listener failed")

    with pytest.raises(RuntimeError):
        engine.generate(request(prompt=OTHER), on_tokens=fails)
    assert engine._session.tokens == []
    assert cached(engine, PROMPTS[0], expected) == len(PROMPTS[0]) - 1


def test_memory_that_runs_out_costs_the_snapshots(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    expected = plain_tokens(llama, ids(PROMPTS[0]), 12)
    cached(engine, PROMPTS[0], expected)

    def fails(*_: Any) -> None:
        raise RuntimeError("[metal::malloc] Unable to allocate 4096 bytes.")

    with pytest.raises(MemoryError):
        engine.generate(request(prompt=OTHER), on_tokens=fails)
    assert cached(engine, PROMPTS[0], expected) == 0


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_further_choices_start_from_the_prompt(engine_for: EngineFor, family: str) -> None:
    model = tiny_model(family)
    engine = engine_for(model)
    lengths: list[int] = []
    prefill = engine.verifier.prefill

    def counted(tokens: list[int], cache: Any) -> None:
        lengths.append(len(tokens))
        prefill(tokens, cache)

    engine.verifier.prefill = counted  # type: ignore[method-assign, assignment]
    engine.generate(request(prompt=PROMPTS[0], n=3, max_tokens=5))
    assert lengths == [len(PROMPTS[0]) - 1]


def test_the_next_turn_finds_all_of_a_text_that_was_written_ahead(engine_for: EngineFor) -> None:
    # Recurrent states cannot go back, and greedy text ends with a pass under way that takes the end token in.
    model = tiny_model("qwen3_next")
    expected = plain_tokens(model, ids(PROMPT), 10)
    end = next(token for token in reversed(expected) if expected.count(token) == 1)
    engine = engine_for(model, nodes=1, prefix_cache_bytes=0)
    first, _ = engine.generate(request(stop_token_ids=[end]))
    assert first.token_ids == expected[: expected.index(end)]
    turn = PROMPT + text_of([*first.token_ids, end])
    again, _ = engine.generate(request(prompt=turn + "!?"))
    assert again.usage is not None
    assert again.usage.cached_prompt_tokens == len(ids(turn))
    assert again.token_ids == plain_tokens(model, ids(turn + "!?"), 30)


def test_an_engine_that_has_forgotten_prefills_all_of_a_prompt_again(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    for again, forgets in ((0, False), (WHOLE, False), (0, True)):
        if forgets:
            engine.forget()
        result, _ = engine.generate(request(prompt=PROMPTS[0], max_tokens=1))
        assert result.usage is not None
        assert result.usage.cached_prompt_tokens == again
