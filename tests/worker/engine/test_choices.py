"""Several choices for one prompt: each as if it had been asked for alone, over a prompt that is prefilled once."""

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from engine_maker import EngineFor
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, chain_of, random_trees
from scripted_model import ScriptedModel, continuing, one_hot
from tiny_models import VOCABULARY, tiny_model
from toy_requests import END, PROMPT, PROMPT_IDS, held, ids, request
from toy_tokenizer import token_id, toy_tokenizer

from api.schemas import GenerationResult
from worker.engine.sampling import Sampling
from worker.engine.session import PrefixTree, Session

SEED = 7
LENGTH = 20


def seed_of(number: int) -> int:
    """As the README says it."""
    digest = hashlib.sha256(f"{SEED}:{number}".encode()).digest()
    return sum(byte << (8 * place) for place, byte in enumerate(digest[:8])) if number else SEED


def plain_choices(model: Any, prompt: Sequence[int], count: int) -> list[list[int]]:
    return [
        plain_tokens(model, prompt, LENGTH, sampling=Sampling(temperature=0.9, seed=seed_of(number)))
        for number in range(count)
    ]


def sampled(**values: Any) -> dict[str, Any]:
    return {"temperature": 0.9, "seed": SEED, "max_tokens": LENGTH, "ignore_eos": True, **values}


def tokens_of(result: GenerationResult) -> list[list[int]]:
    assert result.error is None
    return [choice.token_ids for choice in result.choices]


@pytest.mark.parametrize("right", [0.0, 0.7])
def test_each_choice_is_the_plain_text_of_its_own_seed(llama: Any, engine_for: EngineFor, right: float) -> None:
    expected = plain_choices(llama, PROMPT_IDS, 3)
    assert len({tuple(tokens) for tokens in expected}) == 3
    drafter = ScriptedDrafter(random_trees(expected[1], VOCABULARY, 1, right=right))
    engine = engine_for(llama, drafter=drafter)
    assert tokens_of(engine.generate(request(**sampled(n=3)))[0]) == expected
    # No choice depends on how many there are, or on what the cache held before.
    assert tokens_of(engine.generate(request(**sampled(n=2)))[0]) == expected[:2]
    assert tokens_of(engine.generate(request(**sampled(n=1)))[0]) == expected[:1]


def test_the_seed_of_a_request_without_one_is_derived_for_every_choice(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama)
    values = {**sampled(n=2), "seed": None}
    one, other = (tokens_of(engine.generate(request(**values))[0]) for _ in range(2))
    assert one == other
    assert one[0] != one[1]


def test_a_model_whose_cache_cannot_go_back_gives_the_same_choices(engine_for: EngineFor) -> None:
    model = tiny_model("qwen3_next")
    result, _ = engine_for(model, mode="plain").generate(request(**sampled(n=3)))
    assert tokens_of(result) == plain_choices(model, PROMPT_IDS, 3)


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gemma3_text"])
def test_the_prompt_is_prefilled_once_also_where_a_cache_cannot_go_back(
    engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    prompt, model = "x" * 60, tiny_model(family)
    engine = engine_for(model, mode="plain")
    engine._session = Session(engine.verifier, PrefixTree(2**26))
    lengths: list[int] = []
    prefill = engine.verifier.prefill

    def counting(tokens: Sequence[int], cache: Any) -> None:
        lengths.append(len(tokens))
        prefill(tokens, cache)

    monkeypatch.setattr(engine.verifier, "prefill", counting)
    result, _ = engine.generate(request(**sampled(n=3, prompt=prompt)))
    assert lengths == [59]
    assert tokens_of(result) == plain_choices(model, ids(prompt), 3)


@pytest.mark.parametrize("width", [0, 3])
def test_the_prompt_is_prefilled_and_counted_once(engine_for: EngineFor, width: int) -> None:
    prompt, wanted = "p" * 13, ids("abcdefgh")
    model = ScriptedModel(continuing(ids(prompt), wanted, VOCABULARY))
    engine = engine_for(model, drafter=ScriptedDrafter(chain_of(wanted, width)), prefill_chunk=4)
    counts: list[int] = []
    pieces: list[str] = []

    def on_tokens(text: str, tokens: int) -> None:
        pieces.append(text)
        counts.append(tokens)

    values = {"prompt": prompt, "n": 3, "max_tokens": 8, "temperature": 1.0, "top_k": 1}
    result, stats = engine.generate(request(**values), on_tokens=on_tokens)
    assert tokens_of(result) == [wanted] * 3
    assert [choice.text for choice in result.choices] == ["abcdefgh"] * 3
    assert "".join(pieces) == "abcdefgh" * 3
    assert counts == sorted(counts)
    assert counts[-1] == 24
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (13, 24)
    assert result.usage.cached_prompt_tokens == 0
    # All but the last prompt token, in three chunks, once; then as many passes as are told of.
    assert model.passes == 3 + stats.passes
    assert stats.passes == 3 * (8 // (width + 1))
    assert stats.tokens_per_pass == pytest.approx(24 / stats.passes)
    assert stats.ttft_ms is not None
    assert stats.e2e_tps == pytest.approx(24 / stats.wall_ms * 1000)
    assert stats.decode_tps == pytest.approx((24 - 1 - width) / (stats.wall_ms - stats.ttft_ms) * 1000)
    again, _ = engine.generate(request(**values))
    assert again.usage is not None
    assert again.usage.cached_prompt_tokens == 12


def test_every_choice_ends_by_its_own_rules(engine_for: EngineFor) -> None:
    wanted = [*ids("ab"), token_id("!"), *ids("cd")]
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)))
    result, _ = engine.generate(request(n=2, stop=["!"], max_tokens=9, logprobs=True))
    for choice in result.choices:
        assert (choice.text, choice.finish_reason, choice.matched_stop) == ("ab", "stop", "!")
        assert choice.token_ids == ids("ab")
        assert choice.logprobs is not None
        assert [entry.token_id for entry in choice.logprobs] == ids("ab")
    assert held(engine) in ([*PROMPT_IDS, *ids("ab")], [*PROMPT_IDS, *ids("a")])


def test_reasoning_is_told_apart_and_counted_in_every_choice(engine_for: EngineFor) -> None:
    think, think_end = 1, 2
    wanted = [think, *ids("ab"), think_end, *ids("c"), END]
    model = ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY))
    result, _ = engine_for(model, toy_tokenizer(thinks=True)).generate(request(n=2, max_tokens=9))
    assert [(choice.reasoning, choice.text) for choice in result.choices] == [("ab", "c")] * 2
    assert result.usage is not None
    assert (result.usage.completion_tokens, result.usage.reasoning_tokens) == (10, 8)


def test_the_statistics_of_repetition_are_those_of_the_worst_choice(engine_for: EngineFor) -> None:
    loop = ids("abc" * 8)

    def logits_of(prefix: Sequence[int]) -> list[float]:
        # The first letter is drawn, and decides between a loop and letters that all differ.
        answered = prefix[len(PROMPT_IDS) :]
        if not answered:
            return [5.0 if token in ids("az") else -50.0 for token in range(VOCABULARY)]
        return one_hot(VOCABULARY, (loop if answered[0] == loop[0] else ids("zyxwvutsrqponmlkjihgfedc"))[len(answered)])

    result, stats = engine_for(ScriptedModel(logits_of)).generate(request(n=8, seed=1, temperature=1.0, max_tokens=24))
    starts = {choice.text[0] for choice in result.choices}
    assert starts == {"a", "z"}
    # 19 six-grams, three of them different; each turn but the first is a repeat.
    assert stats.repetition == pytest.approx(16 / 19)
    assert stats.longest_repeat == 21


# Cancelled requests.
@pytest.mark.parametrize("width", [0, 3])
def test_cancel_ends_the_running_choice_and_begins_no_other(engine_for: EngineFor, width: int) -> None:
    wanted = ids("abcdefgh")
    model = ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY))
    engine = engine_for(model, drafter=ScriptedDrafter(chain_of(wanted, width)))
    counts = [0]
    result, stats = engine.generate(
        request(n=4, max_tokens=8),
        on_tokens=lambda _, tokens: counts.append(tokens),
        should_stop=lambda: counts[-1] >= 12,
    )
    assert [choice.finish_reason for choice in result.choices] == ["length", "cancelled"]
    assert tokens_of(result) == [wanted, wanted[:4]]
    assert result.cancelled
    assert result.usage is not None
    assert result.usage.completion_tokens == counts[-1] == 12
    assert stats.tokens_per_pass == pytest.approx(12 / stats.passes)
    assert held(engine)[: len(PROMPT_IDS)] == PROMPT_IDS


def test_cancel_between_two_choices_makes_no_pass(engine_for: EngineFor) -> None:
    wanted = ids("abcdefgh")
    model = ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY))
    engine = engine_for(model)
    counts = [0]
    result, stats = engine.generate(
        request(n=4, max_tokens=8, temperature=1.0, top_k=1),
        on_tokens=lambda _, tokens: counts.append(tokens),
        should_stop=lambda: counts[-1] >= 8,
    )
    assert [choice.finish_reason for choice in result.choices] == ["length", "cancelled"]
    assert tokens_of(result) == [wanted, []]
    assert result.cancelled
    assert model.passes == 1 + stats.passes


def test_a_request_that_was_answered_in_full_is_not_cancelled(engine_for: EngineFor) -> None:
    wanted = ids("abcdefgh")
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)))
    counts = [0]
    result, _ = engine.generate(
        request(n=2, max_tokens=8),
        on_tokens=lambda _, tokens: counts.append(tokens),
        should_stop=lambda: counts[-1] >= 16,
    )
    assert [choice.finish_reason for choice in result.choices] == ["length", "length"]
    assert not result.cancelled


# What the result says.
def test_a_single_choice_has_no_others(llama: Any, engine_for: EngineFor) -> None:
    result, _ = engine_for(llama).generate(request(max_tokens=5))
    assert result.further_choices == []
    assert result.choices == [result]


def test_choices_of_greedy_decoding_are_the_same_and_a_note_says_so(llama: Any, engine_for: EngineFor) -> None:
    result, _ = engine_for(llama).generate(request(n=3, max_tokens=5, ignore_eos=True))
    assert tokens_of(result) == [plain_tokens(llama, PROMPT_IDS, 5)] * 3
    (note,) = result.notes
    assert "temperature 0" in note
    assert engine_for(llama).generate(request(n=3, max_tokens=5, temperature=1.0))[0].notes == []


def test_a_result_with_choices_survives_json(llama: Any, engine_for: EngineFor) -> None:
    values = sampled(n=3, logprobs=True, top_logprobs=2, prompt=PROMPT)
    result, _ = engine_for(llama).generate(request(**values))
    assert GenerationResult.model_validate_json(result.model_dump_json()) == result
