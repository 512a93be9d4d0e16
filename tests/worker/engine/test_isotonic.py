"""Isotonic regression, against its min-max formula and by hand."""

import random
from collections.abc import Sequence

import pytest

from worker.engine.isotonic import isotonic


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
