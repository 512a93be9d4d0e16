"""Sampling by hand: filters, penalties, histories, forced tokens, and rows that leave nothing to draw."""

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from worker.engine.draws import Draws
from worker.engine.reasoning import Reasoning
from worker.engine.sampling import History, NoTokenLeft, Row, Sampling, candidates, draw, penalised

NONE = History([], [])


def log_softmax_of(logits: np.ndarray) -> Row:
    wide = logits.astype(np.float64)
    return (wide - np.logaddexp.reduce(wide)).astype(np.float32)


def random_row(vocabulary: int, seed: int, spread: float = 3.0) -> Row:
    return log_softmax_of(np.random.default_rng(seed).normal(0, spread, vocabulary))


def all_equal(vocabulary: int) -> Row:
    return log_softmax_of(np.zeros(vocabulary))


def one_takes_all(vocabulary: int) -> Row:
    row = np.full(vocabulary, -np.inf, dtype=np.float32)
    row[vocabulary // 3] = 0
    return row


def mostly_impossible(vocabulary: int) -> Row:
    logits = np.full(vocabulary, -np.inf)
    logits[5::7] = np.random.default_rng(3).normal(0, 1, len(logits[5::7]))
    return log_softmax_of(logits)


def steps_of_ties(vocabulary: int) -> Row:
    return log_softmax_of(np.round(np.random.default_rng(4).normal(0, 1, vocabulary)))


ROWS: dict[str, Callable[[], Row]] = {
    "small random": lambda: random_row(50, 1),
    "random": lambda: random_row(1000, 2),
    "random beyond the first try": lambda: random_row(5000, 3, spread=0.5),
    "flat beyond the first try": lambda: random_row(4001, 4, spread=0.01),
    "equal": lambda: all_equal(16),
    "equal beyond the first try": lambda: all_equal(4096),
    "one takes all": lambda: one_takes_all(300),
    "mostly impossible": lambda: mostly_impossible(400),
    "ties": lambda: steps_of_ties(200),
    "ties beyond the first try": lambda: steps_of_ties(3000),
    "two tokens": lambda: random_row(2, 5),
}
FILTERS = [
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 1e-6},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 1},
    {"top_k": 20},
    {"top_p": 0.9, "min_p": 0.02, "top_k": 7},
    {"top_p": 0.8, "top_k": 50},
    {"min_p": 0.3, "top_k": 3},
]


def filtered_by_mlx_lm(row: Row, top_p: float = 1.0, min_p: float = 0.0, top_k: int = 0) -> np.ndarray:
    logprobs = mx.array(row)[None]
    if top_p < 1:
        logprobs = apply_top_p(logprobs, top_p)
    if min_p > 0:
        logprobs = apply_min_p(logprobs, min_p)
    if 0 < top_k < len(row):
        logprobs = apply_top_k(logprobs, top_k)
    return np.array(logprobs[0])


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_candidates_are_those_of_mlx_lm(name: str, filters: dict[str, float]) -> None:
    row = ROWS[name]()
    expected = filtered_by_mlx_lm(row, **filters)  # type: ignore[arg-type]
    kept = candidates(row, Sampling(temperature=1.0, **filters))  # type: ignore[arg-type]
    assert kept.tolist() == sorted(set(kept.tolist()))
    # Which of several equal tokens top-k keeps is open in mlx-lm, so values are compared, one by one.
    np.testing.assert_array_equal(np.sort(row[kept]), np.sort(expected[expected > -np.inf]))
    if "top_k" not in filters:
        assert kept.tolist() == np.flatnonzero(expected > -np.inf).tolist()


def test_nucleus_by_hand() -> None:
    row = np.log(np.array([0.1, 0.5, 0.25, 0.15], dtype=np.float32))
    for top_p, expected in ((0.4, [1]), (0.6, [1, 2]), (0.8, [1, 2, 3]), (0.95, [0, 1, 2, 3])):
        assert candidates(row, Sampling(temperature=1.0, top_p=top_p)).tolist() == expected


def test_top_k_keeps_the_lowest_ids_of_equal_tokens() -> None:
    row = log_softmax_of(np.array([0.0, 1.0, 1.0, 1.0, 2.0]))
    assert candidates(row, Sampling(temperature=1.0, top_k=3)).tolist() == [1, 2, 4]


def test_penalties_by_hand() -> None:
    row = mx.array([[2.0, -2.0, 1.0, 4.0]])
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    # Token 0 once: 2/2 - 0.5 - 0.25; token 1 twice: -2*2 - 0.5 - 2*0.25.
    np.testing.assert_allclose(np.array(penalised(row, sampling, [1, 0, 1])), [[0.25, -5.0, 1.0, 4.0]])


def test_history_takes_the_last_tokens_across_its_three_parts() -> None:
    prompt, completion, emitted = [1, 2, 3, 4], [5, 6], [7, 8, 9]
    whole = [*prompt, *completion, *emitted]
    for size in range(1, 12):
        assert History(prompt, completion, emitted).last(size) == whole[-size:]
        assert History(prompt, completion).last(size) == [*prompt, *completion][-size:]
        assert History(prompt, [], emitted).last(size) == [*prompt, *emitted][-size:]
    assert History(prompt, completion, emitted).position == 9
    assert History(prompt, completion, emitted).completion_length == 5


def test_processing_one_node_leaves_every_other_row_alone() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (4, 32)).astype(np.float32)
    sampling = Sampling(
        temperature=0.8,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        logit_bias={4: 2.0},
        min_tokens=5,
        suppressed=frozenset({9}),
    )
    history = History([1, 2, 3, 3], [4])
    passed = mx.array(logits)
    together = Draws(sampling, passed)
    rows = [together.logprobs(node, history) for node in (2, 0, 3, 1)]
    alone = [Draws(sampling, mx.array(logits)).logprobs(node, history) for node in (2, 0, 3, 1)]
    np.testing.assert_array_equal(rows, alone)
    np.testing.assert_array_equal(np.array(passed), logits)


def test_rows_without_history_are_the_biased_log_softmax() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (3, 16)).astype(np.float32)
    draws = Draws(Sampling(temperature=1.0, logit_bias={2: 5.0, 7: -3.0}), mx.array(logits))
    logits[:, 2] += 5
    logits[:, 7] -= 3
    for node in range(3):
        np.testing.assert_allclose(draws.logprobs(node, NONE), log_softmax_of(logits[node]), atol=2e-6)


def test_greedy_takes_the_first_of_logits_that_the_log_softmax_merges() -> None:
    # In bfloat16 the subtraction of logsumexp, about 5, merges logits that differ in the third decimal.
    logits = mx.array([[0.0078, 0.0081, *[0.0] * 148]]).astype(mx.bfloat16)
    assert mx.argmax(logits).item() == 1
    for sampling in (Sampling(), Sampling(presence_penalty=0.5)):
        assert Draws(sampling, logits).draw(0, History([100], [])) == 0


def test_the_same_seed_and_position_draw_the_same_token_and_others_do_not() -> None:
    row = all_equal(4096)
    sampling = Sampling(temperature=1.0, seed=5)
    drawn = [draw(row, sampling, position) for position in range(20)]
    assert drawn == [draw(row, sampling, position) for position in range(20)]
    assert len(set(drawn)) > 15
    assert drawn != [draw(row, Sampling(temperature=1.0, seed=6), position) for position in range(20)]


def test_a_temperature_near_zero_is_greedy() -> None:
    row = log_softmax_of(np.array([1.0, 3.0, 2.9, -np.inf]))
    for temperature in (1e-6, 1e-300, 5e-324):
        assert {draw(row, Sampling(temperature=temperature), position) for position in range(50)} == {1}


def test_end_tokens_are_suppressed_until_the_least_length() -> None:
    logits = mx.array([[0.0, 5.0, 1.0]])
    sampling = Sampling(min_tokens=2, suppressed=frozenset({1}))
    for emitted, expected in (([], 2), ([2], 2), ([2, 2], 1)):
        assert Draws(sampling, logits).draw(0, History([0], [], emitted)) == expected
    masked = Draws(sampling, logits).logprobs(0, History([0], []))
    np.testing.assert_allclose(masked, [-math.log(1 + math.e), -np.inf, 1 - math.log(1 + math.e)], atol=1e-6)


@pytest.mark.parametrize(
    ("prompt", "completion", "forced"),
    [
        ([3], [5, 5, 5, 5], False),
        ([1], [5, 5], False),
        ([1], [5, 5, 5], True),
        ([1, 2], [5, 5, 5, 5], False),
        ([3], [1, 5, 5], False),
        ([3], [1, 5, 5, 5], True),
        ([1], [5, 2, 5, 5, 5], False),
        ([1], [5, 5, 5, 5], True),
    ],
)
def test_the_end_of_thinking_is_forced_when_the_budget_is_spent(
    prompt: list[int], completion: list[int], forced: bool
) -> None:
    sampling = Sampling(thinking_budget=3, think_start=1, think_end=2)
    logits = mx.array([[0.0, 0.0, -50.0, 0.0, 0.0, 0.0, 9.0]])
    for split in range(len(completion) + 1):
        reasoning = Reasoning(1, 2, prompt)
        reasoning.push(completion[:split])
        history = History(prompt, completion[:split], completion[split:], reasoning)
        assert Draws(sampling, logits).draw(0, history) == (2 if forced else 6)


FORBIDDING = {"logit_bias": dict.fromkeys(range(4), -1e300)}
RECIPES = {
    "greedy": {},
    "sampled": {"temperature": 0.7, "top_p": 0.9, "top_k": 2},
    "greedy with a history": {"presence_penalty": 0.5},
    "sampled with a history": {"temperature": 0.7, "presence_penalty": 0.5},
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_that_leaves_no_token_is_an_error_of_the_request(recipe: str, dtype: mx.Dtype) -> None:
    history = History([1, 2], [3])
    fine = [0.0, 1.0, 2.0, 3.0]
    broken = {
        "infinite": [0.0, math.inf, 2.0, 3.0],
        "impossible": [-math.inf] * 4,
        "no number": [0.0, math.nan, 2.0, 3.0],
    }
    logits = mx.array([*broken.values(), fine]).astype(dtype)
    draws = Draws(Sampling(**RECIPES[recipe]), logits)  # type: ignore[arg-type]
    for node in range(len(broken)):
        with pytest.raises(NoTokenLeft, match="no token can be drawn at position 3"):
            draws.draw(node, history)
    assert draws.draw(3, history) in (2, 3)
    forbidding = Draws(Sampling(**FORBIDDING, **RECIPES[recipe]), logits)  # type: ignore[arg-type]
    with pytest.raises(NoTokenLeft) as raised:
        forbidding.draw(3, history)
    assert raised.value.error.code == "no_token_left"
    assert raised.value.error.status == 400


def test_an_end_token_that_may_not_be_drawn_yet_and_nothing_else_is_an_error() -> None:
    sampling = Sampling(min_tokens=1, suppressed=frozenset({0, 1, 2, 3}))
    with pytest.raises(NoTokenLeft):
        Draws(sampling, mx.zeros((1, 4))).draw(0, History([1], []))
    assert Draws(sampling, mx.zeros((1, 4))).draw(0, History([1], [2])) == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("bias", [1e5, 1e38, 1e300])
def test_a_bias_past_the_range_of_the_logits_type_takes_all_the_probability(bias: float, dtype: mx.Dtype) -> None:
    logits = mx.array([[30.0, -30.0, 5.0, 0.0]]).astype(dtype)
    for temperature in (0.0, 1.0):
        draws = Draws(Sampling(temperature=temperature, logit_bias={1: bias}), logits)
        assert draws.draw(0, NONE) == 1
        assert draws.logprobs(0, NONE)[1] == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_a_bias_below_the_range_of_the_logits_type_forbids_its_token(dtype: mx.Dtype) -> None:
    logits = mx.array([[30.0, -30.0, 5.0, 0.0]]).astype(dtype)
    draws = Draws(Sampling(logit_bias={0: -1e300}), logits)
    assert draws.logprobs(0, NONE)[0] == -np.inf
    assert draws.draw(0, NONE) == 2
