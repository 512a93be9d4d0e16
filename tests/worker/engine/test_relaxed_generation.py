"""The relaxed acceptance rule in whole generations: what it takes and counts, and where it has no effect."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from engine_maker import EngineFor
from scripted_drafters import ScriptedDrafter, chain_of
from scripted_model import ScriptedModel
from tiny_models import VOCABULARY
from toy_requests import END, ids, request

from api.schemas import GenerationResult, JobStats
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.engine import Engine

LIKELY, OTHER = ids("ab")
LENGTH = 40


def three_to_one(_: Sequence[int]) -> list[float]:
    """P(LIKELY) = 3/4, P(OTHER) = 1/4, whatever came before: so each draw depends on its position alone."""
    row = [-60.0] * VOCABULARY
    row[LIKELY], row[OTHER] = math.log(3), 0.0
    return row


def generate(engine: Engine, **values: Any) -> tuple[GenerationResult, JobStats]:
    result, stats = engine.generate(request(**{"max_tokens": LENGTH, "temperature": 1.0, "seed": 11, **values}))
    assert result.error is None
    return result, stats


def engine_with(engine_for: EngineFor, width: int) -> Engine:
    """Drafts LIKELY, `width` times each round."""
    return engine_for(ScriptedModel(three_to_one), drafter=ScriptedDrafter(chain_of([LIKELY] * 99, width)))


@pytest.fixture
def lossless(engine_for: EngineFor) -> list[int]:
    result, stats = generate(engine_with(engine_for, 3))
    assert (stats.forced_tokens, stats.acceptance_rule) == (0, "lossless")
    assert 5 < result.token_ids.count(OTHER) < 20
    return result.token_ids


@pytest.mark.parametrize("width", [1, 3])
def test_misses_within_a_draft_are_overruled_and_counted(
    engine_for: EngineFor, lossless: list[int], width: int
) -> None:
    result, stats = generate(engine_with(engine_for, width), acceptance="ratio:theta=0.3")
    # A miss has the probability 1/4, below 0.3, so a whole draft is always taken, and the draw after it stands.
    expected = [draw if place % (width + 1) == width else LIKELY for place, draw in enumerate(lossless)]
    assert result.token_ids == expected
    assert stats.forced_tokens == sum(draw != token for draw, token in zip(lossless, expected, strict=True))
    assert stats.accepted_tokens == stats.drafted_tokens == LENGTH - LENGTH // (width + 1)
    assert stats.acceptance_rule == "ratio:theta=0.3"


@pytest.mark.parametrize("theta", ["0", "0.04"])
def test_a_threshold_that_nothing_passes_leaves_the_lossless_text(
    engine_for: EngineFor, lossless: list[int], theta: str
) -> None:
    # Three tokens are the most that a miss of 1/4 can gain.
    result, stats = generate(engine_with(engine_for, 3), acceptance=f"ratio:theta={theta}")
    assert (result.token_ids, stats.forced_tokens) == (lossless, 0)


def test_greedy_text_is_plain_under_every_rule(engine_for: EngineFor) -> None:
    def logits_of(prefix: Sequence[int]) -> list[float]:
        """Another token at every third place, by a hair."""
        row = three_to_one(prefix)
        row[OTHER] = row[LIKELY] + (0.01 if len(prefix) % 3 == 0 else -0.01)
        return row

    texts = []
    for rule in (None, "ratio:theta=1"):
        engine = engine_for(ScriptedModel(logits_of), drafter=ScriptedDrafter(chain_of([LIKELY] * 99, 3)))
        result, stats = generate(engine, temperature=0.0, acceptance=rule)
        texts.append(result.token_ids)
        assert stats.forced_tokens == 0
    assert texts[0] == texts[1]
    assert set(texts[0]) == {LIKELY, OTHER}


def test_a_forced_token_is_one_that_the_filters_leave(engine_for: EngineFor, lossless: list[int]) -> None:
    # The nucleus is LIKELY alone for top_p 0.7, so a draft of OTHER is never taken.
    drafter = ScriptedDrafter(chain_of([OTHER] * 99, 3))
    engine = engine_for(ScriptedModel(three_to_one), drafter=drafter)
    result, stats = generate(engine, top_p=0.7, acceptance="ratio:theta=1")
    assert (result.token_ids, stats.forced_tokens) == ([LIKELY] * LENGTH, 0)
    # Without the filter OTHER can be drawn, and theta 1 lets every miss pass.
    result, stats = generate(engine, acceptance="ratio:theta=1")
    assert [token for place, token in enumerate(result.token_ids) if place % 4 != 3] == [OTHER] * 30
    assert stats.forced_tokens == sum(token != OTHER for place, token in enumerate(lossless) if place % 4 != 3)


def test_no_end_of_the_text_is_forced_or_overruled(engine_for: EngineFor) -> None:
    def logits_of(prefix: Sequence[int]) -> list[float]:
        row = three_to_one(prefix)
        row[END] = row[OTHER]
        return row

    plain, _ = generate(engine_for(ScriptedModel(logits_of), nodes=1))
    assert plain.finish_reason == "stop"
    for drafted in ([LIKELY] * 99, [END] * 99):
        engine = engine_for(ScriptedModel(logits_of), drafter=ScriptedDrafter(chain_of(drafted, 3)))
        result, _ = generate(engine, acceptance="ratio:theta=1")
        assert (len(result.token_ids), result.finish_reason) == (len(plain.token_ids), "stop")


def test_logprobs_are_the_target_s_of_the_tokens_in_the_text(engine_for: EngineFor) -> None:
    result, stats = generate(engine_with(engine_for, 3), acceptance="ratio:theta=0.3", logprobs=True)
    assert stats.forced_tokens > 0
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == result.token_ids
    for entry in result.logprobs:
        chance = 0.75 if entry.token_id == LIKELY else 0.25
        assert entry.logprob == pytest.approx(math.log(chance), abs=1e-5)


def test_the_counts_of_all_choices_add_up(engine_for: EngineFor) -> None:
    several, stats = generate(engine_with(engine_for, 3), acceptance="ratio:theta=0.3", n=3)
    assert len(several.choices) == 3
    first, _ = generate(engine_with(engine_for, 3))
    forced = sum(token == OTHER for place, token in enumerate(first.token_ids) if place % 4 != 3)
    assert stats.forced_tokens > forced


def test_the_suffix_drafter_s_guesses_are_forced_too(engine_for: EngineFor) -> None:
    engine = engine_for(ScriptedModel(three_to_one), drafter=SuffixDrafter())
    result, stats = generate(engine, acceptance="ratio:theta=1")
    assert stats.forced_tokens > 0
    assert set(result.token_ids) == {LIKELY, OTHER}
