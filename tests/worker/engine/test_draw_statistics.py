"""The keyed draw as a sample: over seeds and positions its frequencies are those of the exact distribution.

Every count is a function of fixed seeds, so no test is random. That the counts are enough is shown by draws that are
slightly wrong: their p-values are below FAR. Draws are made in bulk from one table of noise, and some of them again by
`draw` itself.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from chi_square import p_value, tail
from keyed_noise import Noise, noise_table

from worker.engine.philox import gumbel_noise
from worker.engine.sampling import Row, Sampling, draw, tempered

SEEDS, POSITIONS, VOCABULARY = 300, 400, 17
"""A test draws once for each seed and position."""
NEAR, FAR = 1e-3, 1e-9
Tokens = npt.NDArray[np.int64]


@cache
def noise() -> Noise:
    """Noise [SEEDS, POSITIONS, VOCABULARY]."""
    return noise_table(SEEDS, POSITIONS, VOCABULARY)


def some_draws() -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    return [(int(rng.integers(SEEDS)), int(rng.integers(POSITIONS))) for _ in range(100)]


def drawn(row: Row, **values: float) -> Tokens:
    """Tokens [SEEDS, POSITIONS] that are drawn from `row` with the sampling `values`."""
    tokens = drawn_with(noise(), row, **values)
    for seed, position in some_draws():
        assert draw(row, Sampling(**values, seed=seed), position) == tokens[seed, position]  # type: ignore[arg-type]
    return tokens


def drawn_with(noise: Noise, row: Row, **values: float) -> Tokens:
    tokens, scores = tempered(row, Sampling(**values))  # type: ignore[arg-type]
    return tokens[np.argmax(scores + noise[:, :, tokens], axis=-1)]


def counts_of(tokens: Tokens, size: int) -> Tokens:
    return np.bincount(tokens.ravel(), minlength=size)


def row_of(probabilities: npt.ArrayLike) -> Row:
    return np.log(np.asarray(probabilities, dtype=np.float64)).astype(np.float32)


def at_temperature(probabilities: npt.ArrayLike, temperature: float) -> npt.NDArray[np.float64]:
    weights = np.asarray(probabilities, dtype=np.float64) ** (1 / temperature)
    return weights / weights.sum()


# Half of the mass on one token and half on sixteen: the temperature moves much of it.
LOPSIDED = [0.5, *[0.5 / 16] * 16]
UNEVEN = [0.02, 0.3, 0.08, 0.25, 0.05, 0.2, 0.1]


def test_the_tail_of_chi_square_is_that_of_the_tables() -> None:
    # 0.999 and 0.95 quantiles.
    for degrees, statistic, level in ((1, 10.828, 1e-3), (2, 13.816, 1e-3), (7, 24.322, 1e-3), (16, 26.296, 0.05)):
        assert tail(statistic, degrees) == pytest.approx(level, rel=1e-3)


def test_the_table_holds_the_noise_of_draws() -> None:
    for seed, position in some_draws():
        expected = gumbel_noise(seed, position, np.arange(VOCABULARY))
        np.testing.assert_allclose(noise()[seed, position], expected, rtol=1e-13)


def test_draws_have_the_frequencies_of_the_softmax() -> None:
    tokens, exact = drawn(row_of(LOPSIDED), temperature=0.9), at_temperature(LOPSIDED, 0.9)
    for part in (tokens, tokens[: SEEDS // 2], tokens[:, POSITIONS // 2 :], tokens[::2], tokens[:, ::2]):
        assert p_value(counts_of(part, 17), exact) > NEAR


@pytest.mark.parametrize("wrong", [0.97, 0.98, 1.02, 1.03])
def test_a_temperature_that_is_wrong_by_3_percent_would_show(wrong: float) -> None:
    tokens = drawn(row_of(LOPSIDED), temperature=0.9 * wrong)
    assert p_value(counts_of(tokens, 17), at_temperature(LOPSIDED, 0.9)) < FAR


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_every_temperature_has_its_frequencies(temperature: float) -> None:
    tokens = drawn(row_of(UNEVEN), temperature=temperature)
    assert p_value(counts_of(tokens, 7), at_temperature(UNEVEN, temperature)) > NEAR


@pytest.mark.parametrize(
    ("filters", "kept"),
    [({"top_k": 3}, [1, 3, 5]), ({"top_p": 0.8}, [1, 3, 5, 6]), ({"min_p": 0.2}, [1, 2, 3, 5, 6])],
    ids=["top_k", "top_p", "min_p"],
)
def test_filtered_draws_have_the_frequencies_of_the_survivors(filters: dict[str, float], kept: list[int]) -> None:
    counts = counts_of(drawn(row_of(UNEVEN), temperature=0.8, **filters), 7)
    assert counts[kept].sum() == counts.sum()
    assert p_value(counts[kept], at_temperature([UNEVEN[token] for token in kept], 0.8)) > NEAR


def normal(noise: Noise) -> Noise:
    """Of the Gumbel distribution's mean and variance, and the wrong shape."""
    return np.random.default_rng(0).normal(0.5772, math.pi / math.sqrt(6), noise.shape)


def shared(noise: Noise) -> Noise:
    """Two neighbouring tokens read one word."""
    return noise[:, :, np.arange(VOCABULARY) // 2 * 2]


def leaning(noise: Noise) -> Noise:
    """Later tokens have a little more: the last of seven 10 % more chance than the first."""
    return noise + 0.1 * np.arange(VOCABULARY) / 6


def coarse(noise: Noise) -> Noise:
    """Made of 4 bits instead of 32."""
    uniform = (np.floor(-np.expm1(-np.exp(-noise)) * 16) + 0.5) / 16
    return -np.log(-np.log1p(-uniform))


@pytest.mark.parametrize("wrong", [normal, shared, leaning, coarse])
def test_noise_that_is_wrong_would_show(wrong: Callable[[Noise], Noise]) -> None:
    assert p_value(counts_of(drawn(row_of(UNEVEN), temperature=1.0), 7), UNEVEN) > NEAR
    tokens = drawn_with(wrong(noise()), row_of(UNEVEN), temperature=1.0)
    assert p_value(counts_of(tokens, 7), UNEVEN) < FAR


def test_draws_of_neighbouring_positions_and_seeds_are_independent() -> None:
    probabilities = [0.5, 0.3, 0.2]
    tokens = drawn(row_of(probabilities), temperature=1.0)
    neighbours = {
        "positions": (tokens[:, :-1:2], tokens[:, 1::2]),
        "seeds": (tokens[:-1:2], tokens[1::2]),
        "both": (tokens[:-1:2, :-1:2], tokens[1::2, 1::2]),
    }
    for one, other in neighbours.values():
        assert p_value(counts_of(3 * one + other, 9), np.outer(probabilities, probabilities)) > NEAR


def test_noise_of_neighbours_is_independent_in_every_range() -> None:
    # Quarters of the distribution: exp(-exp(-g)) is uniform.
    quarter = (np.exp(-np.exp(-noise()[:, :, :16])) * 4).astype(int)
    blocks = quarter.reshape(SEEDS, POSITIONS, 4, 4)
    neighbours = {
        "tokens of a block": (quarter[:, :, 0::2], quarter[:, :, 1::2]),
        "tokens of two blocks": (blocks[:, :, 0::2], blocks[:, :, 1::2]),
        "positions": (quarter[:, 0::2], quarter[:, 1::2]),
        "seeds": (quarter[0::2], quarter[1::2]),
        "position and token": (quarter[:, 0::2, 0:15], quarter[:, 1::2, 1:16]),
    }
    for one, other in neighbours.values():
        assert p_value(counts_of(4 * one + other, 16), [1 / 16] * 16) > NEAR
