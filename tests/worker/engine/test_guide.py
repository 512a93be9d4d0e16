"""The guide ranks candidates as the target will draw them."""

import math

import numpy as np
import pytest

from worker.engine.drafters.guide import CONSIDERED, Guide
from worker.engine.philox import gumbel_noise
from worker.engine.sampling import Sampling, draw


def logprobs_of(vocabulary: int, seed: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=vocabulary).astype(np.float32) * 2
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def test_a_greedy_guide_ranks_by_probability() -> None:
    row = np.log(np.array([0.1, 0.6, 0.05, 0.25], dtype=np.float32))
    assert [token for token, _ in Guide().candidates(row, 1, 3)] == [1, 3, 0]
    assert [odds for _, odds in Guide().candidates(row, 1, 2)] == pytest.approx([0.6, 0.25])


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}])
def test_the_first_candidate_of_the_targets_own_row_is_its_draw(filters: dict[str, float]) -> None:
    for seed in range(50):
        row = logprobs_of(80, seed)
        sampling = Sampling(temperature=0.9, seed=seed, **filters)  # type: ignore[arg-type]
        for depth in (1, 2, 7):
            (token, odds), *_ = Guide(sampling, position=100).candidates(row, depth, 4)
            assert token == draw(row, sampling, 100 + depth)
            assert 0 < odds <= 1


def test_odds_without_noise_are_those_of_the_draw() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    guide = Guide(Sampling(temperature=0.5, top_k=3, seed=1), noise=False)
    # Squared and renormalised over the three that survive.
    whole = 0.25 + 0.0625 + 0.015625
    assert guide.candidates(row, 1, 3) == [
        (0, pytest.approx(0.25 / whole)),
        (1, pytest.approx(0.0625 / whole)),
        (2, pytest.approx(0.015625 / whole)),
    ]


def test_a_part_of_the_vocabulary_is_ranked_with_the_noise_of_its_own_ids() -> None:
    row, ids = logprobs_of(60, 3), np.arange(7, 60, 4)
    guide = Guide(Sampling(temperature=1.0, seed=5), position=9)
    whole = [token for token, _ in guide.candidates(row, 2, 60) if token in set(ids.tolist())]
    assert [token for token, _ in guide.candidates(row[ids], 2, len(ids), ids)] == whole


def test_a_large_vocabulary_is_ranked_by_its_likeliest_tokens() -> None:
    row = logprobs_of(5000, 8)
    chosen = Guide(Sampling(temperature=1.0, seed=2)).candidates(row, 1, 5)
    likeliest = set(np.argsort(-row)[:CONSIDERED].tolist())
    assert {token for token, _ in chosen} <= likeliest


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, seed=1), Sampling(temperature=0.8, top_p=0.9)]
)
def test_what_is_no_probability_gives_no_candidates(sampling: Sampling) -> None:
    """A drafter of 16 bit may overflow; that costs its guesses, not the request."""
    for row in (np.full(9, np.nan, dtype=np.float32), np.full(9, -np.inf, dtype=np.float32)):
        assert all(odds == 0 for _, odds in Guide(sampling).candidates(row, 1, 3))


# Shares of observed draws.

SHARES = [0.4, 0.3, 0.2, 0.1]
VOTED = [11, 3, 40_000, 7]


@pytest.mark.parametrize("guide", [Guide(), Guide(Sampling(temperature=0.8, seed=4), noise=False)])
def test_greedy_and_by_odds_shares_are_odds(guide: Guide) -> None:
    assert guide.elected(VOTED, SHARES, 1, 1.0) == SHARES


def test_with_exact_shares_and_full_trust_the_draw_is_elected() -> None:
    """Shares are at the temperature already: whatever it is, it does not act once more."""
    row = np.full(40_001, -np.inf, dtype=np.float32)
    row[VOTED] = np.log(SHARES)
    for seed in range(200):
        guide = Guide(Sampling(temperature=0.3, top_k=2, seed=seed), position=50)
        for depth in (1, 5):
            odds = guide.elected(VOTED, SHARES, depth, 1.0)
            assert VOTED[int(np.argmax(odds))] == draw(row, Sampling(temperature=1.0, seed=seed), 50 + depth)


def test_odds_of_an_election_by_hand() -> None:
    # Of ten observed draws one had ended: the shares come to 0.9, and so do the odds.
    tokens, shares = [5, 6, 9], [0.5, 0.3, 0.1]
    noise = gumbel_noise(3, 22, np.array(tokens))
    for trust in (0.0, 0.4, 1.0):
        powers = [share * math.exp(trust * one) for share, one in zip(shares, noise, strict=True)]
        expected = [0.9 * power / sum(powers) for power in powers]
        elected = Guide(Sampling(temperature=1.0, seed=3), position=20).elected(tokens, shares, 2, trust)
        assert elected == pytest.approx(expected)
        if not trust:
            assert elected == pytest.approx(shares)
