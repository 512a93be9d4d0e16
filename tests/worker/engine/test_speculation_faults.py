"""Faults of public speculative engines that this one must not have, one test or more for each of their kinds.

The target is a function from token prefix to logits (`ScriptedModel`), the drafter a script. Tokens are characters of
the toy vocabulary; the reference loops below are written out plainly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import EngineFor
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, add_chain, chain_of
from scripted_model import LogitsOf, ScriptedModel, cached_tokens, continuing, one_hot
from tiny_models import VOCABULARY, tiny_model
from toy_tokenizer import text_of, token_id, toy_tokenizer

from api.schemas import GenerationRequest, GenerationResult
from worker.engine.budget import CostCurve
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.engine import Engine
from worker.engine.tree import TokenTree

PROMPT = "Q:"
PROMPT_IDS = [token_id(character) for character in PROMPT]
END = 0
WIDTHS = [1, 2, 4, 8]
"""How many right tokens the drafter proposes per round."""


def ids(text: str) -> list[int]:
    return [token_id(character) for character in text]


def request(**values: Any) -> GenerationRequest:
    return GenerationRequest.model_validate({"request_id": "r-1", "prompt": PROMPT, "raw": True, **values})


def answer(engine: Engine, **values: Any) -> GenerationResult:
    result, _ = engine.generate(request(**values))
    assert result.error is None
    return result


def held(engine: Engine) -> list[int]:
    """The tokens in the target's cache, which have to be those that the session believes it holds."""
    tokens = cached_tokens(engine._session.cache)
    assert tokens == engine._session.tokens
    return tokens


def assert_agrees(result: GenerationResult, tokens: Sequence[int]) -> None:
    """Ids, usage and logprobs speak of the same tokens."""
    assert result.token_ids == list(tokens)
    assert result.usage is not None
    assert result.usage.completion_tokens == len(tokens)
    assert result.usage.prompt_tokens == len(PROMPT_IDS)
    if result.logprobs is not None:
        assert [entry.token_id for entry in result.logprobs] == list(tokens)


# Row 1: an end token accepted in the middle of a block.
@pytest.mark.parametrize("kind", ["end token", "stop token"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_after_an_accepted_end_token_is_emitted_or_cached(engine_for: EngineFor, kind: str, width: int) -> None:
    end = END if kind == "end token" else token_id("T")
    wanted = [*ids("56"), end, *ids("78")]
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(chain_of(wanted, width))
    )
    stops = {} if kind == "end token" else {"stop_token_ids": [end]}
    result = answer(engine, max_tokens=10, logprobs=True, **stops)
    assert result.text == "56"
    assert result.finish_reason == "stop"
    assert result.matched_stop == (None if kind == "end token" else end)
    assert_agrees(result, ids("56"))
    assert held(engine) == [*PROMPT_IDS, *ids("56")]


def test_an_end_token_that_is_ignored_is_an_ordinary_token(engine_for: EngineFor) -> None:
    wanted = [*ids("5"), END, *ids("78")]
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(chain_of(wanted, 4))
    )
    assert answer(engine, max_tokens=4, ignore_eos=True).token_ids == wanted


# Row 2: one round that passes both the cap and a stop.
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("max_tokens", "kept", "reason"), [(5, 2, "stop"), (3, 2, "stop"), (2, 2, "length"), (1, 1, "length")]
)
@pytest.mark.parametrize("kind", ["stop token", "stop string"])
def test_stops_are_looked_at_before_the_cap(
    engine_for: EngineFor, kind: str, max_tokens: int, kept: int, reason: str, width: int
) -> None:
    wanted = ids("ab!cde")
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(chain_of(wanted, width))
    )
    stop = {"stop_token_ids": [token_id("!")]} if kind == "stop token" else {"stop": ["!"]}
    result = answer(engine, max_tokens=max_tokens, **stop)
    assert_agrees(result, wanted[:kept])
    assert result.text == "ab"[:kept]
    assert result.finish_reason == reason


# Row 3: the cap counted by whole rounds.
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 7, 16])
@pytest.mark.parametrize("width", WIDTHS)
def test_exactly_max_tokens_come_back_and_no_draft_is_planned_past_them(
    engine_for: EngineFor, width: int, max_tokens: int
) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz")
    drafter = ScriptedDrafter(chain_of(wanted, width))
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=drafter)
    result = answer(engine, max_tokens=max_tokens)
    assert_agrees(result, wanted[:max_tokens])
    assert result.finish_reason == "length"
    for emitted, limits in drafter.asked:
        # The pass emits one token more than the path it accepts.
        assert emitted + limits.depth + 1 <= max_tokens


# Row 4: stop strings and the size of a round.
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (["x", "a", "b", "long", "tail"], ["x"]),
        (["x", "ya", "bz", "long", "tail"], ["x", "ya"]),
        (["x", "yab", "abz", "a", "b"], ["x", "yab"]),
        (["a", "x", "a", "a", "b", "a", "b"], ["a", "x", "a"]),
        (["x", "a", "y", "a"], ["x", "a", "y", "a"]),
    ],
)
def test_a_stop_string_cuts_at_its_earliest_match_whatever_the_round(
    engine_for: EngineFor, wanted: list[str], kept: list[str], width: int
) -> None:
    tokenizer = toy_tokenizer(extra=["long", "tail", "ya", "bz", "yab", "abz"])
    encoded = [tokenizer.convert_tokens_to_ids(piece) for piece in wanted]
    width_of_logits = VOCABULARY + 6
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, [*encoded, END], width_of_logits)),
        tokenizer,
        vocabulary=width_of_logits,
        drafter=ScriptedDrafter(chain_of([*encoded, END], width)),
    )
    pieces: list[str] = []
    result, _ = engine.generate(
        request(max_tokens=20, stop=["ab"], logprobs=True), on_tokens=lambda text, _: pieces.append(text)
    )
    assert result.text == "".join(wanted).partition("ab")[0]
    assert_agrees(result, encoded[: len(kept)])
    assert result.matched_stop == ("ab" if "ab" in "".join(wanted) else None)
    assert "".join(pieces) == result.text
    # The cut token was committed and is taken back; the last kept one may be pending still.
    expected = [*PROMPT_IDS, *encoded[: len(kept)]]
    assert held(engine) in (expected, expected[:-1])


# Rows 5 and 6: processors see every row, with its own history.
def plain_loop(
    logits_of: LogitsOf, count: int, *, frequency: float = 0.0, bias: dict[int, float] | None = None
) -> list[int]:
    """Greedy decoding with penalties, one token at a time, written out."""
    tokens = list(PROMPT_IDS)
    while len(tokens) < len(PROMPT_IDS) + count:
        row = np.array(logits_of(tokens), dtype=np.float64)
        for token, extra in (bias or {}).items():
            row[token] += extra
        for token in tokens[-20:]:
            row[token] -= frequency
        tokens.append(int(np.argmax(row)))
    return tokens[len(PROMPT_IDS) :]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_banned_token_never_comes_though_draft_and_raw_argmax_say_so(engine_for: EngineFor, width: int) -> None:
    seven, eight = ids("78")

    def logits_of(prefix: Sequence[int]) -> list[float]:
        row = one_hot(VOCABULARY, seven)
        row[eight] = 9.0
        return row

    drafter = ScriptedDrafter(chain_of([seven, eight] * 10, width))
    engine = engine_for(ScriptedModel(logits_of), drafter=drafter)
    result = answer(engine, max_tokens=12, logit_bias={seven: -100.0})
    assert result.token_ids == [eight] * 12
    mixed = ScriptedDrafter(chain_of([eight] * 20, width))
    engine = engine_for(ScriptedModel(logits_of), drafter=mixed)
    assert answer(engine, max_tokens=12, logit_bias={seven: -100.0}).token_ids == [eight] * 12


@pytest.mark.parametrize("processor", ["min_p", "logit_bias", "repetition", "presence", "frequency", "top_k"])
def test_every_verified_row_gets_every_processor(engine_for: EngineFor, processor: str) -> None:
    # Without the processor the target would say only "7"; with it, never, or not twice within the window.
    seven, eight = ids("78")

    def logits_of(_: Sequence[int]) -> list[float]:
        row = [-30.0] * VOCABULARY
        row[seven], row[eight] = 1.0, 0.9
        return row

    values: dict[str, Any] = {
        "min_p": {"min_p": 0.99, "temperature": 5.0},
        "top_k": {"top_k": 1, "temperature": 5.0},
        "logit_bias": {"logit_bias": {seven: -5.0}},
        "repetition": {"repetition_penalty": 2.0},
        "presence": {"presence_penalty": 2.0},
        "frequency": {"frequency_penalty": 2.0},
    }[processor]
    texts = set()
    for width in (0, 1, 4, 8):
        engine = engine_for(ScriptedModel(logits_of), drafter=ScriptedDrafter(chain_of([seven] * 99, width)))
        texts.add(tuple(answer(engine, max_tokens=9, **values).token_ids))
    (tokens,) = texts
    if processor in ("min_p", "top_k"):
        assert set(tokens) == {seven}
    elif processor == "logit_bias":
        assert set(tokens) == {eight}
    else:
        assert tokens[:2] == (seven, eight)


@pytest.mark.parametrize("width", [0, 4, 5, 8])
def test_the_penalty_state_is_that_of_plain_decoding_after_acceptance_and_rejection(
    engine_for: EngineFor, width: int
) -> None:
    five, six, nine = ids("569")
    raw = [five, five, six, six]

    def logits_of(prefix: Sequence[int]) -> list[float]:
        place = len(prefix) - len(PROMPT_IDS)
        row = [0.0] * VOCABULARY
        if place < 4:
            row[raw[place]] = 10.0
            return row
        # Afterwards counts decide: 5 and 6 stand at 2 each, and 9 would win only if it had not been counted.
        row[five], row[six], row[nine] = 5.0, 4.9, 3.5
        return row

    draft = [*raw, nine, nine]
    drafter = ScriptedDrafter(chain_of(draft, width))
    engine = engine_for(ScriptedModel(logits_of), drafter=drafter)
    result = answer(engine, max_tokens=14, frequency_penalty=1.0)
    assert result.token_ids[:4] == raw
    assert result.token_ids == plain_loop(logits_of, 14, frequency=1.0)


# Row 8: recurrent state.
@pytest.mark.parametrize("family", ["qwen3_next", "gemma3_text"])
def test_a_hybrid_model_loses_no_token_and_keeps_no_stale_state(engine_for: EngineFor, family: str) -> None:
    model = tiny_model(family)
    engine = engine_for(model, mode="plain", nodes=8)
    prompts = ["count1to20", "count1to20", "count1to9", "x"]
    for prompt in prompts:
        result = answer(engine, prompt=prompt, max_tokens=30, ignore_eos=True)
        assert result.token_ids == plain_tokens(model, ids(prompt), 30)


# Row 9: off-by-one roll-back, in three rounds that accept 0, 2 and 4 of four drafts.
def test_target_and_drafter_keep_exactly_the_accepted_rows(engine_for: EngineFor) -> None:
    wanted = ids("abcdefghijklmnopqrst")
    right = iter([0, 2, 4])
    lengths: list[int] = []

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        lengths.append(len(cached_tokens(engine._session.cache)))
        count = next(right, 0)
        add_chain(tree, [*wanted[emitted : emitted + count], *ids("####")][:4], limits)

    drafter = ScriptedDrafter(script)
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=drafter)
    result = answer(engine, max_tokens=12)
    assert result.token_ids == wanted[:12]
    # Prefill leaves one row out (the pending token); each round commits the root and what it accepts.
    start = len(PROMPT_IDS) - 1
    assert lengths[:4] == [start, start + 1, start + 1 + 3, start + 1 + 3 + 5]
    assert drafter.tokens == [*PROMPT_IDS, *wanted[:12]]
    assert held(engine) == [*PROMPT_IDS, *wanted[:11]]


# Row 12: however a text ends, the cache ends at the last committed token.
@pytest.mark.parametrize("exit_by", ["stop string", "stop token", "end token", "cap", "cancel", "exception"])
@pytest.mark.parametrize("width", [0, 3])
def test_the_cache_is_right_after_every_exit(engine_for: EngineFor, width: int, exit_by: str) -> None:
    wanted = [*ids("abcde!fgh"), END]
    model = ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY))
    rounds = iter(range(100))

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        number = next(rounds)
        if exit_by == "exception" and number == 2:
            raise RuntimeError("the drafter broke")
        # Drafts come and go: the last round before the end may be plain or speculative.
        add_chain(tree, wanted[emitted : emitted + (width if number % 2 == 0 else 1)], limits)

    engine = engine_for(model, drafter=ScriptedDrafter(script))
    values: dict[str, Any] = {"max_tokens": 30}
    if exit_by == "stop string":
        values["stop"] = ["!"]
    elif exit_by == "stop token":
        values["stop_token_ids"] = [token_id("!")]
    elif exit_by == "cap":
        values["max_tokens"] = 5
    if exit_by == "exception":
        with pytest.raises(RuntimeError):
            engine.generate(request(**values))
        assert held(engine) == []
    else:
        asked = iter(range(100))
        result, _ = engine.generate(request(**values), should_stop=lambda: exit_by == "cancel" and next(asked) >= 3)
        whole = [*PROMPT_IDS, *result.token_ids]
        assert held(engine) in (whole, whole[:-1])
        assert result.token_ids == wanted[: len(result.token_ids)]
    again = answer(engine, max_tokens=30)
    assert again.text == "abcde!fgh"
    assert held(engine) == [*PROMPT_IDS, *wanted[:-1]]


# Row 14 has its byte tokens in test_completion.py and its real tokenizer in test_smollm2_text.py; here a round that
# ends within a character.
@pytest.mark.parametrize("width", WIDTHS)
def test_pieces_never_end_within_a_cluster_of_characters_that_a_token_holds(engine_for: EngineFor, width: int) -> None:
    tokenizer = toy_tokenizer(extra=["e\u0301", "🏳", "\ufe0f", "\u200d🌈"])
    encoded = [tokenizer.convert_tokens_to_ids(piece) for piece in ["e\u0301", "🏳", "\ufe0f", "\u200d🌈", "z"]]
    size = VOCABULARY + 4
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, [*encoded, END], size)),
        tokenizer,
        vocabulary=size,
        drafter=ScriptedDrafter(chain_of([*encoded, END], width)),
    )
    pieces: list[str] = []
    result, _ = engine.generate(request(max_tokens=9), on_tokens=lambda text, _: pieces.append(text))
    assert result.text == "".join(pieces) == tokenizer.decode(encoded) == "e\u0301🏳\ufe0f\u200d🌈z"


# Row 17: the thinking budget counts emitted tokens.
@pytest.mark.parametrize("width", [0, 1, 4, 8])
@pytest.mark.parametrize("budget", [0, 1, 7, 16])
@pytest.mark.parametrize("opened_by", ["prompt", "model"])
def test_the_forced_end_of_thinking_comes_after_exactly_the_budget(
    engine_for: EngineFor, opened_by: str, budget: int, width: int
) -> None:
    think, think_end = 1, 2
    letters = ids("abcdefghijklmnopqrstuvwxyz" * 3)
    prompt = [*PROMPT_IDS, think] if opened_by == "prompt" else PROMPT_IDS

    def logits_of(prefix: Sequence[int]) -> list[float]:
        answered = prefix[len(prompt) :]
        if opened_by == "model" and not answered:
            return one_hot(VOCABULARY, think)
        if think_end in answered:
            return one_hot(VOCABULARY, token_id("!") if answered[-1] == think_end else END)
        return one_hot(VOCABULARY, letters[len(answered)])

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        # Half of the guesses are wrong, and none knows of the budget.
        node = 0
        for place in range(emitted, emitted + width):
            if len(tree) >= limits.nodes or tree.depths[node] >= limits.depth:
                return
            tree.add(node, token_id("#"), 0.9)
            node = tree.add(node, letters[place], 0.8)

    engine = engine_for(ScriptedModel(logits_of), toy_tokenizer(thinks=True), drafter=ScriptedDrafter(script))
    text = PROMPT + ("<think>" if opened_by == "prompt" else "")
    result = answer(engine, prompt=text, max_tokens=60, thinking_budget=budget)
    thought = letters[:budget] if opened_by == "prompt" else [think, *letters[1 : budget + 1]]
    assert result.token_ids == [*thought, think_end, token_id("!")]
    assert result.reasoning == text_of(letters[:budget] if opened_by == "prompt" else letters[1 : budget + 1])
    assert result.text == "!"
    assert result.usage is not None
    assert result.usage.reasoning_tokens == len(thought) + 1


# Row 20: the last token of a request that ends with the bonus token.
@pytest.mark.parametrize("width", WIDTHS)
def test_usage_is_the_number_of_emitted_ids_when_the_bonus_token_hits_the_cap(
    engine_for: EngineFor, width: int
) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz")
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(chain_of(wanted, width))
    )
    counts: list[int] = []
    result, stats = engine.generate(
        request(max_tokens=2 * (width + 1)), on_tokens=lambda _, count: counts.append(count)
    )
    assert_agrees(result, wanted[: 2 * (width + 1)])
    assert counts == [width + 1, 2 * (width + 1)]
    assert stats.passes == 2
    assert stats.accepted_tokens == stats.drafted_tokens == 2 * width
    assert stats.acceptance == 1.0
    assert stats.tokens_per_pass == width + 1


# Row 25: rounds without a draft.
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_without_a_draft_is_a_plain_step_and_the_next_starts_clean(
    engine_for: EngineFor, temperature: float
) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz")

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        if emitted % 7 > 2:
            add_chain(tree, [*wanted[emitted : emitted + 2], token_id("#")], limits)

    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(script))
    result, stats = engine.generate(request(max_tokens=24, temperature=temperature, top_k=1))
    assert result.token_ids == wanted[:24]
    assert stats.budgets[1] >= 3
    assert sum(count for nodes, count in stats.budgets.items() if nodes > 1) >= 3
    assert held(engine) == [*PROMPT_IDS, *wanted[:23]]


# Row 28: slower than plain, and roll-backs that copy (the latter in test_verifier.py).
def test_the_budget_falls_to_one_node_when_a_poor_drafter_does_not_pay(engine_for: EngineFor) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz" * 4)
    wrong = ScriptedDrafter(lambda _, tree, limits: add_chain(tree, ids("####"), limits) and None)
    # A pass over 5 nodes costs twice one over 1 node.
    curve = CostCurve((1, 5), (10.0, 20.0))
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=wrong, curve=curve, max_tree_nodes=5
    )
    first = engine.generate(request(max_tokens=60))[1]
    second = engine.generate(request(max_tokens=60))[1]
    assert first.budgets[1] >= 10
    assert second.budgets == {1: 60}


def test_the_budget_rises_again_when_the_drafter_is_right(engine_for: EngineFor) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz" * 6)
    good = False

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        add_chain(tree, wanted[emitted : emitted + 4] if good else ids("####"), limits)

    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)),
        drafter=ScriptedDrafter(script),
        curve=CostCurve((1, 5), (10.0, 20.0)),
        max_tree_nodes=5,
    )
    engine.generate(request(max_tokens=60))
    good = True
    stats = engine.generate(request(max_tokens=120))[1]
    # Plain passes teach as well, so it notices without verifying a single draft.
    assert sum(count for nodes, count in stats.budgets.items() if nodes > 1) >= 10
    assert stats.tokens_per_pass is not None
    assert stats.tokens_per_pass > 1.5


def test_the_suffix_drafter_is_what_an_engine_speculates_with(engine_for: EngineFor) -> None:
    wanted = ids("abcdefgh" * 5)
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)))
    assert isinstance(engine.drafter, SuffixDrafter)
    result, stats = engine.generate(request(max_tokens=40))
    assert result.token_ids == wanted
    assert stats.drafter == "suffix"
    assert stats.passes < 20
