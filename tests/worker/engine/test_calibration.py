"""Calibration: it learns what guesses are worth, recovers, and stays monotone."""

import random
from collections.abc import Sequence

import pytest

from worker.engine.calibration import Calibration, isotonic
from worker.engine.tree import TokenTree

RIGHT, WRONG = 5, 6


def guess(confidence: float, depth: int = 1) -> TokenTree:
    """A chain of `depth` guesses of RIGHT."""
    tree = TokenTree(0)
    for node in range(depth):
        tree.add(node, RIGHT, confidence)
    return tree


def value(calibration: Calibration, confidence: float) -> float:
    tree = guess(confidence)
    calibration.appraise(tree)
    return tree.values[1]


def teach(calibration: Calibration, outcome: int, times: int, confidence: float = 0.65) -> None:
    for _ in range(times):
        calibration.learn(guess(confidence), [outcome])


def test_before_any_outcome_a_guess_is_worth_about_its_confidence() -> None:
    calibration = Calibration()
    for confidence, bin_centre in ((0.05, 0.05), (0.3, 0.325), (0.65, 0.65), (0.98, 0.98)):
        assert value(calibration, confidence) == pytest.approx(bin_centre)


def test_a_drafter_that_is_always_right_comes_to_be_trusted_and_one_that_is_never_does_not() -> None:
    right, wrong = Calibration(), Calibration()
    teach(right, RIGHT, 60)
    teach(wrong, WRONG, 60)
    assert value(right, 0.65) > 0.94
    assert value(wrong, 0.65) < 0.15


def test_it_recovers_within_a_request_and_across_requests() -> None:
    calibration = Calibration()
    for _ in range(20):
        teach(calibration, WRONG, 50)
        calibration.start_request()
    assert value(calibration, 0.65) < 0.05
    teach(calibration, RIGHT, 40)
    assert value(calibration, 0.65) > 0.8
    for _ in range(30):
        calibration.start_request()
        teach(calibration, RIGHT, 50)
    calibration.start_request()
    assert value(calibration, 0.65) > 0.9


def test_history_remembers_across_requests() -> None:
    calibration = Calibration()
    teach(calibration, WRONG, 50)
    before = value(calibration, 0.65)
    calibration.start_request()
    assert value(calibration, 0.65) == pytest.approx(before, abs=0.1)
    assert value(calibration, 0.65) < 0.2


def test_the_estimate_by_hand() -> None:
    # Bin [0.6, 0.7): prior 0.65 with weight 4; three of four right in an earlier request, one of two in this one.
    calibration = Calibration()
    teach(calibration, RIGHT, 3)
    teach(calibration, WRONG, 1)
    calibration.start_request()
    teach(calibration, RIGHT, 1)
    teach(calibration, WRONG, 1)
    history = (3 + 4 * 0.65) / (4 + 4)
    assert value(calibration, 0.65) == pytest.approx((1 + 6 * history) / (2 + 6))


def test_values_multiply_down_a_path_and_never_rise() -> None:
    calibration = Calibration()
    teach(calibration, RIGHT, 30)
    tree = TokenTree(0)
    rng = random.Random(2)
    while len(tree) < 30:
        tree.add(rng.randrange(len(tree)), rng.randrange(9), rng.random())
    calibration.appraise(tree)
    assert tree.values[0] == 1
    for node in range(1, len(tree)):
        assert 0 < tree.values[node] <= tree.values[tree.parents[node]]


def test_values_are_monotone_in_confidence() -> None:
    calibration = Calibration()
    rng = random.Random(3)
    for _ in range(300):
        # Confident guesses fail and timid ones succeed: an order that the values must not take over.
        confidence = rng.random()
        calibration.learn(guess(confidence), [WRONG if rng.random() < confidence else RIGHT])
    values = [value(calibration, step / 50) for step in range(51)]
    assert values == sorted(values)


def test_the_deep_learn_apart_from_the_shallow() -> None:
    calibration = Calibration()
    for _ in range(40):
        calibration.learn(guess(0.65, depth=8), [RIGHT] * 7 + [WRONG])
    tree = guess(0.65, depth=8)
    calibration.appraise(tree)
    steps = [tree.values[node] / tree.values[node - 1] for node in range(1, 9)]
    assert min(steps[:7]) > 0.9
    assert steps[7] < 0.2


def test_only_guesses_with_a_known_outcome_are_counted() -> None:
    # The pass ended after one token: what the deeper guesses were worth is not known.
    calibration = Calibration()
    before = guess(0.65, depth=3)
    calibration.appraise(before)
    for _ in range(50):
        calibration.learn(guess(0.65, depth=3), [RIGHT])
    after = guess(0.65, depth=3)
    calibration.appraise(after)
    assert after.values[1] > 0.9
    for node in (2, 3):
        assert after.values[node] / after.values[node - 1] == pytest.approx(
            before.values[node] / before.values[node - 1]
        )


def test_siblings_of_the_right_guess_count_as_wrong() -> None:
    calibration = Calibration()
    for _ in range(40):
        tree = TokenTree(0)
        tree.add(0, RIGHT, 0.65)
        tree.add(0, WRONG, 0.3)
        calibration.learn(tree, [RIGHT])
    assert value(calibration, 0.65) > 0.9
    assert value(calibration, 0.3) < 0.1


def minimax(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Isotonic regression by its min-max formula: the largest over starts of the smallest weighted mean over ends."""

    def mean(first: int, last: int) -> float:
        total = sum(weights[first : last + 1])
        return sum(v * w for v, w in zip(values[first : last + 1], weights[first : last + 1], strict=True)) / total

    count = len(values)
    return [max(min(mean(a, b) for b in range(i, count)) for a in range(i + 1)) for i in range(count)]


@pytest.mark.parametrize("seed", range(30))
def test_isotonic_equals_the_minimax_formula(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    values = [rng.choice([rng.random(), 0.5, float(rng.randint(-3, 3))]) for _ in range(count)]
    weights = [rng.choice([1.0, rng.random() + 0.01, 50.0]) for _ in range(count)]
    assert isotonic(values, weights) == pytest.approx(minimax(values, weights))


def test_isotonic_by_hand() -> None:
    assert isotonic([1, 2, 3], [1, 1, 1]) == [1, 2, 3]
    assert isotonic([3, 2, 1], [1, 1, 1]) == pytest.approx([2, 2, 2])
    assert isotonic([1, 3, 2, 4], [1, 1, 3, 1]) == pytest.approx([1, 2.25, 2.25, 4])
    assert isotonic([], []) == []
