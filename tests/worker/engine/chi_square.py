"""Pearson's chi-square test, with its tail computed exactly."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def tail(statistic: float, degrees: int) -> float:
    """Probability that a chi-square variable with `degrees` degrees of freedom exceeds `statistic`.

    Q(a, x) of a = degrees / 2, x = statistic / 2, through Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1) from
    Q(1/2, x) = erfc(sqrt x) or Q(1, x) = e^-x (DLMF 8.8.6, 8.4.6, 8.4.8).
    """
    x = statistic / 2
    a, upper = (0.5, math.erfc(math.sqrt(x))) if degrees % 2 else (1.0, math.exp(-x))
    while a < degrees / 2:
        upper += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return upper


def p_value(counts: Sequence[int] | npt.NDArray[np.int64], probabilities: npt.ArrayLike) -> float:
    """Chance of counts at least as far from their expectation, were they drawn with `probabilities` (sum 1)."""
    observed = np.asarray(counts).ravel()
    expected = np.asarray(probabilities, dtype=np.float64).ravel() * observed.sum()
    assert abs(expected.sum() - observed.sum()) < 1e-6 * observed.sum()
    assert expected.min() >= 5, "too few draws for the chi-square distribution"
    return tail(float(((observed - expected) ** 2 / expected).sum()), len(observed) - 1)
