"""Faults of public speculative engines that this one must not have: where a text ends.

The target is a function from token prefix to logits (`ScriptedModel`), the drafter a script. Tokens are characters of
the toy vocabulary.
"""

from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor
from scripted_drafters import ScriptedDrafter, add_chain, chain_of
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_requests import END, PROMPT_IDS, WIDTHS, answer, assert_agrees, held, ids, request
from toy_tokenizer import token_id, toy_tokenizer

from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree


# An end token accepted in the middle of a block.
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


# One round that passes both the cap and a stop.
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


# The cap counted by whole rounds.
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


# Stop strings and the size of a round.
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


@pytest.mark.parametrize("stop", ["de", "hi", "yz"])
@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_stop_string_cuts_off_was_not_accepted(engine_for: EngineFor, width: int, stop: str) -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, ids(text), VOCABULARY)),
        drafter=ScriptedDrafter(chain_of(ids(text), width)),
    )
    result, stats = engine.generate(request(max_tokens=26, stop=[stop]))
    assert result.text == text.partition(stop)[0]
    # Each pass emits `width` drafted tokens and one more.
    kept = range(1, 1 + len(result.text))
    assert stats.accepted_tokens == sum(place % (width + 1) != 0 for place in kept)
    assert stats.passes == -(-(text.index(stop) + 2) // (width + 1))
    assert stats.acceptance == stats.accepted_tokens / stats.drafted_tokens
    assert stats.tokens_per_pass == len(kept) / stats.passes


# However a text ends, the cache ends at the last committed token.
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


class FailingModel(ScriptedModel):
    """Raises in the pass of that number."""

    failing_pass = 0

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        if self.passes + 1 == self.failing_pass:
            self.failing_pass = 0
            raise RuntimeError("the pass failed")
        return super().__call__(inputs, cache)


# Left between two rounds, of which the first accepted more than the second may draft.
@pytest.mark.parametrize("left_by", ["cancel", "failing drafter", "failing pass"])
def test_leaving_between_a_long_and_a_short_round_keeps_what_the_long_one_committed(
    engine_for: EngineFor, left_by: str
) -> None:
    wanted = ids("abcdefgh")
    model = FailingModel(continuing(PROMPT_IDS, wanted, VOCABULARY))
    drafted: list[int] = []

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        drafted.append(min(3, limits.depth))
        if left_by == "failing drafter" and len(drafted) == 2:
            raise RuntimeError("the drafter failed")
        add_chain(tree, wanted[emitted : emitted + 3], limits)

    engine = engine_for(model, drafter=ScriptedDrafter(script))
    if left_by == "cancel":
        # The first round gives four tokens of the six that are asked for.
        result, _ = engine.generate(request(max_tokens=6), should_stop=lambda: bool(drafted))
        assert result.finish_reason == "cancelled"
        assert_agrees(result, wanted[:4])
        assert held(engine) == [*PROMPT_IDS, *wanted[:3]]
    else:
        # The prompt, the long round, and the short one that fails.
        model.failing_pass = 3 if left_by == "failing pass" else 0
        with pytest.raises(RuntimeError):
            engine.generate(request(max_tokens=6))
        # One drafted token is all that may follow, and nothing half committed stays.
        assert drafted == [3, 1]
        assert held(engine) == []
    result = answer(engine, max_tokens=6)
    assert_agrees(result, wanted[:6])
    assert held(engine) == [*PROMPT_IDS, *wanted[:5]]


# The last token of a request that ends with the bonus token.
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
