"""The guide ranks candidates as the target will draw them."""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from worker.engine.drafters.guide import CONSIDERED, Guide
from worker.engine.drafters.next_tokens import shortlist
from worker.engine.draws import Draws
from worker.engine.philox import gumbel_noise
from worker.engine.reasoning import Reasoning
from worker.engine.sampling import History, Sampling, candidates, draw
from worker.engine.tree import TokenTree

TEXT = History([4] * 60, [8] * 41)
"""A text whose last token, the root of a draft, is at position 100."""


def logprobs_of(vocabulary: int, seed: int, spread: float = 2.0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=vocabulary).astype(np.float32) * np.float32(spread)
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
            (token, odds), *_ = Guide(sampling, TEXT).candidates(row, depth, 4)
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
    guide = Guide(Sampling(temperature=1.0, seed=5), TEXT)
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


@pytest.mark.parametrize("top_p", [0.2, 0.5, 0.62, 0.9])
def test_the_nucleus_of_a_shortlist_is_that_of_the_whole_row(top_p: float) -> None:
    """The shortlist holds 64 % of the mass: a nucleus of what it holds would be too small."""
    row = logprobs_of(1000, 3, spread=1.0)
    [short] = shortlist(mx.array(row[None]))
    assert short.ids is not None
    assert 0.6 < np.exp(short.logprobs).sum() < 0.7
    sampling = Sampling(temperature=0.9, top_p=top_p)
    chosen = Guide(sampling, noise=False).candidates(short.logprobs, 1, 1000, short.ids)
    nucleus = candidates(row, sampling).tolist()
    assert sorted(token for token, _ in chosen) == (nucleus if top_p < 0.63 else short.ids.tolist())


# What a request does to logits.

PROMPT, COMPLETION = [5, 9, 9, 150, 31, 7], [40, 9, 41]
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"logit_bias": {7: -100.0, 11: 3.5, 170: 40.0, 12: -2.0}},
    "a bias that forbids": {"logit_bias": dict.fromkeys(range(0, 200, 3), -1e300)},
    "no end yet": {"min_tokens": 5, "suppressed": frozenset(range(60))},
    "an end from here on": {"min_tokens": 4, "suppressed": frozenset(range(60))},
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    "penalties on a few tokens": {"presence_penalty": 6.0, "penalty_context_size": 2},
    "rewards": {"repetition_penalty": 0.5, "frequency_penalty": -2.0},
    "the end of thinking": {"thinking_budget": 4, "think_start": 31, "think_end": 77},
    "everything": {
        "logit_bias": {7: -100.0, 11: 3.5, 12: -2.0},
        "min_tokens": 9,
        "suppressed": frozenset({2, 3, 4}),
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
    },
}
FILTERS: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"top_k": 9}, {"min_p": 0.05}]
FILTERS += [{"top_p": 0.95, "top_k": 40, "min_p": 0.01}]


def history_of(sampling: Sampling, emitted: Sequence[int] = ()) -> History:
    reasoning = Reasoning(sampling.think_start, sampling.think_end, PROMPT)
    reasoning.push(COMPLETION)
    return History(PROMPT, COMPLETION, emitted, reasoning)


def grown_tree() -> tuple[TokenTree, list[int]]:
    """A tree below the pending token, and nodes at depth 2 of it."""
    tree = TokenTree(COMPLETION[-1])
    likely, other = tree.add(0, 41, 0.5), tree.add(0, 9, 0.3)
    return tree, [tree.add(likely, 9, 0.5), tree.add(likely, 18, 0.2), tree.add(other, 9, 0.1)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("vocabulary", [200, 1500])
@pytest.mark.parametrize("asked", REQUESTS)
def test_the_first_guess_from_the_targets_own_logits_is_its_draw(
    asked: str, vocabulary: int, temperature: float
) -> None:
    tree, nodes = grown_tree()
    for seed in range(12):
        # So steep that no draw comes from beyond the shortlist of 256 tokens.
        logits = mx.array(logprobs_of(vocabulary, seed, spread=5.0) + np.float32(4.0))
        rows = mx.stack([logits, mx.roll(logits, 50), mx.roll(logits, 101)])
        for filters in FILTERS if temperature else FILTERS[:1]:
            sampling = Sampling(temperature=temperature, seed=seed, **REQUESTS[asked], **filters)
            guide = Guide(sampling, history_of(sampling))
            expected = shortlist(guide.processed(rows, tree, nodes))
            for place, (node, row) in enumerate(zip(nodes, expected, strict=True)):
                path = [tree.tokens[one] for one in tree.path(node)[1:]]
                draw_of = Draws(sampling, rows).draw(place, history_of(sampling, path))
                assert guide.candidates(row.logprobs, 3, 2, row.ids)[0][0] == draw_of


def test_rows_of_a_block_go_by_the_text_before_it() -> None:
    sampling = Sampling(presence_penalty=2.0, logit_bias={3: 1.0}, min_tokens=4, suppressed=frozenset({6}))
    logits = mx.array(np.stack([logprobs_of(60, seed) for seed in range(4)]))
    changed = np.array(Guide(sampling, history_of(sampling)).processed(logits))
    by_hand = np.array(logits)
    by_hand[:, 3] += 1
    by_hand[:, [5, 9, 31, 7, 40, 41]] -= 2
    by_hand[:, 6] = -np.inf
    np.testing.assert_allclose(changed, by_hand, atol=1e-6)


SAYS_MUCH = Sampling(
    repetition_penalty=1.5,
    frequency_penalty=0.5,
    logit_bias={1: 2.0, 399: 5.0},
    min_tokens=9,
    suppressed=frozenset({2}),
)


def test_logits_of_fewer_tokens_than_the_request_names_are_processed_as_far_as_they_go() -> None:
    tree, nodes = grown_tree()
    guide = Guide(SAYS_MUCH, history_of(SAYS_MUCH))
    rows = mx.array(np.stack([logprobs_of(400, seed) for seed in range(3)]))
    whole = np.array(guide.processed(rows, tree, nodes))
    np.testing.assert_array_equal(np.array(guide.processed(rows[:, :30], tree, nodes)), whole[:, :30])


def test_logits_of_chosen_tokens_are_processed_as_those_of_all() -> None:
    tree, nodes = grown_tree()
    guide = Guide(SAYS_MUCH, history_of(SAYS_MUCH))
    rows = mx.array(np.stack([logprobs_of(400, seed) for seed in range(3)]))
    whole = np.array(guide.processed(rows, tree, nodes))
    chosen = np.stack([np.random.default_rng(seed).permutation(380)[:90] for seed in range(3)])
    ids = mx.array(chosen)
    found = guide.processed(mx.take_along_axis(rows, ids, axis=-1), tree, nodes, ids)
    np.testing.assert_array_equal(np.array(found), np.take_along_axis(whole, chosen, axis=-1))


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
        guide = Guide(Sampling(temperature=0.3, top_k=2, seed=seed), TEXT)
        for depth in (1, 5):
            odds = guide.elected(VOTED, SHARES, depth, 1.0)
            assert VOTED[int(np.argmax(odds))] == draw(row, Sampling(temperature=1.0, seed=seed), 100 + depth)


def test_odds_of_an_election_by_hand() -> None:
    # Of ten observed draws one had ended: the shares come to 0.9, and so do the odds.
    tokens, shares = [5, 6, 9], [0.5, 0.3, 0.1]
    noise = gumbel_noise(3, 102, np.array(tokens))
    for trust in (0.0, 0.4, 1.0):
        powers = [share * math.exp(trust * one) for share, one in zip(shares, noise, strict=True)]
        expected = [0.9 * power / sum(powers) for power in powers]
        elected = Guide(Sampling(temperature=1.0, seed=3), TEXT).elected(tokens, shares, 2, trust)
        assert elected == pytest.approx(expected)
        if not trust:
            assert elected == pytest.approx(shares)
