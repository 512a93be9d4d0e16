"""Recorded log-probabilities: the drawn token's, and its likeliest rivals' in order."""

import math

import numpy as np
import pytest

from worker.engine.logprobs import LogprobRecord, likelihood_in

ROW = np.array([math.log(0.1), math.log(0.4), -math.inf, math.log(0.25), math.log(0.25)], dtype=np.float32)


def record(top: int) -> LogprobRecord:
    return LogprobRecord(top, lambda ids: "".join(chr(97 + token) for token in ids))


@pytest.mark.parametrize(("top", "rivals"), [(0, []), (1, [1]), (3, [1, 3, 4]), (4, [1, 3, 4, 0])])
def test_rivals_come_likeliest_first_and_ties_by_id(top: int, rivals: list[int]) -> None:
    made = record(top)
    made.add(3, likelihood_in(ROW, 3, top))
    (entry,) = made.of([3])
    assert (entry.token_id, entry.token) == (3, "d")
    assert entry.logprob == pytest.approx(np.log(0.25))
    assert [rival.token_id for rival in entry.top] == rivals
    assert [rival.logprob for rival in entry.top] == pytest.approx([float(ROW[token]) for token in rivals])


@pytest.mark.parametrize("top", [5, 6, 20])
def test_more_rivals_than_tokens_are_all_that_can_be_drawn(top: int) -> None:
    made = record(top)
    made.add(1, likelihood_in(ROW, 1, top))
    assert [rival.token_id for rival in made.of([1])[0].top] == [1, 3, 4, 0]


def test_draws_past_the_end_of_the_text_are_left_out() -> None:
    made = record(1)
    for token in (1, 3, 4):
        made.add(token, likelihood_in(ROW, token, 1))
    assert [entry.token_id for entry in made.of([1, 3])] == [1, 3]
