"""The kernels' arithmetic against the engine's: right wherever the host is not needed, which it rarely is."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sample_cases import engine_token, logits_of, sampling_of
from sample_model import BOUND, RowModel, gumbel32, masses, random_words

from kernels.sample.draws import STEPS, Draw, scales
from worker.engine.philox import random_bits
from worker.engine.sampling import tempered

POSITIONS = 600
FILTERS = [
    Draw(temperature=1.0),
    Draw(temperature=0.7, top_p=0.95),
    Draw(temperature=1.3, top_p=0.5),
    Draw(temperature=3.0, top_p=0.99),
    Draw(temperature=0.8, top_k=20),
    Draw(temperature=1.0, top_p=0.9, top_k=40, min_p=0.02),
    Draw(temperature=1.0, top_p=0.999999),
    Draw(temperature=0.1, min_p=0.1),
    Draw(temperature=1e-3),
]


def row_of(number: int) -> NDArray[np.float32]:
    """Log-probabilities, every third row rounded as bfloat16 would, so that many are equal."""
    kind = ("spread", "flat", "ties", "mostly impossible")[number % 4]
    logits = logits_of(kind, 300 + 37 * (number % 11), number).astype(np.float64)
    row = (logits - np.logaddexp.reduce(logits)).astype(np.float32)
    if number % 3 == 0:
        row = (row.view(np.uint32) + np.uint32(0x7FFF) & np.uint32(0xFFFF0000)).view(np.float32)
    return row


def exact_draws(row: NDArray[np.float32], asked: Draw, words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The engine's survivors and scores; noise in float64 from the same bits."""
    tokens, scores = tempered(row, sampling_of(asked))
    noise = -np.log(-np.log1p(-(words[:, tokens].astype(np.float64) + 0.5) * 2.0**-32))
    return tokens[np.argmax(scores + noise, axis=1)]


def test_the_host_is_rarely_asked_and_every_other_decision_is_the_engines() -> None:
    decisions = asked_for = 0
    for number in range(20):
        row = row_of(number)
        positions = np.random.default_rng(number).integers(0, 2**32, POSITIONS)
        seed = 2**63 + number * 12345678912345
        words = random_words(seed, positions, np.arange(len(row)))
        for asked in FILTERS:
            model = RowModel(row, asked)
            tokens, needs_host = model.draws(words[:, model.survivors])
            expected = exact_draws(row, asked, words)
            assert np.array_equal(tokens[~needs_host], expected[~needs_host]), (number, asked)
            decisions += len(tokens)
            asked_for += int(needs_host.sum())
        spot = Draw(1.0, 0.9, 50, 0.001, seed, int(positions[0]))
        model = RowModel(row, spot)
        (token,), (flag,) = model.draws(random_words(seed, positions[:1], model.survivors))
        assert flag or token == engine_token(row, spot)
    assert decisions >= 100_000
    assert 0 < asked_for < 1e-3 * decisions


def test_a_nucleus_that_ends_within_rounding_is_never_decided_wrongly() -> None:
    """top_p is the mass of some of the tokens, or differs from it by less than a float32 could tell."""
    asked_for = decisions = 0
    for number in range(24):
        row = row_of(number)
        mass = np.cumsum(np.exp(np.sort(row)[::-1], dtype=np.float64))
        edge = int(np.searchsorted(mass, 0.7 * mass[-1]))
        top_p = min(float(mass[edge] / mass[-1]) * (1 + (number % 5 - 2) * 3e-8), 1 - 1e-9)
        asked = Draw(temperature=1.0, top_p=top_p)
        words = random_words(number, np.arange(2000), np.arange(len(row)))
        model = RowModel(row, asked)
        tokens, needs_host = model.draws(words[:, model.survivors])
        expected = exact_draws(row, asked, words)
        assert np.array_equal(tokens[~needs_host], expected[~needs_host])
        asked_for += int(needs_host.sum())
        decisions += len(tokens)
    assert 0 < asked_for < decisions / 2


def test_the_noise_errs_by_less_than_a_quarter_of_the_bound() -> None:
    """A score errs by its noise and by (log p - max) / T, which is at most 26 where it can win."""
    edges = [0, 1, 2, 2**29 - 1, 2**29, 2**29 + 1, 2**31, 2**32 - 2, 2**32 - 1]
    bits = np.concatenate([np.random.default_rng(1).integers(0, 2**32, 400_000), 2 ** np.arange(32), edges])
    exact = -np.log(-np.log1p(-(bits.astype(np.float64) + 0.5) * 2.0**-32))
    error = np.abs(gumbel32(bits.astype(np.uint32)) - exact)
    assert error.max() < BOUND / 4
    assert 3 * 26 * 2.0**-24 + error.max() < BOUND / 2


def test_masses_are_right_to_a_third_of_the_margin() -> None:
    for number in range(12):
        row = row_of(number)
        exact = np.exp(row - np.float64(row.max()), dtype=np.float64)
        order = np.argsort(-row, kind="stable")
        ours, theirs = np.cumsum(masses(row)[order].astype(np.float64)) * 2.0**-45, np.cumsum(exact[order])
        assert np.abs(ours - theirs).max() / theirs[-1] < 2.0**-18 / 3


def test_scales_are_powers_of_e_in_26_bits() -> None:
    words = np.array(scales()).astype(np.uint64)
    mantissas, shifts = words >> np.uint64(6), words & np.uint64(63)
    assert ((mantissas >= 2**25) & (mantissas < 2**26)).all()
    exact = np.exp(-np.arange(STEPS) / 64) * 2.0**25
    np.testing.assert_allclose(mantissas.astype(np.float64) * 0.5 ** shifts.astype(np.float64), exact, rtol=2.0**-26)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_the_models_bits_are_the_engines(seed: int) -> None:
    tokens = np.array([0, 1, 2, 3, 4, 4093, 262_143])
    for position in (0, 77, 2**32 - 1):
        words = random_words(seed, np.array([position]), tokens)[0]
        assert words.tolist() == random_bits(seed, position, tokens).tolist()
