"""The guide: how a drafter's probabilities become guesses at the target's draw.

A greedy draw takes the likeliest token. A sampled one takes the largest log p / T + g, where the noise g is known
beforehand (`philox`): a drafter that ranks by its own log p / T plus that very noise guesses the draw itself, and the
text stays exact, because the target draws as ever (drafter-invariant speculative decoding, arXiv:2408.07978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from worker.engine.philox import gumbel_noise, token_noise
from worker.engine.sampling import Row, Sampling, Tokens, tempered

Scores = npt.NDArray[np.float64]

# Candidates that the noise may lift: beyond so many the likeliest tokens have no chance worth a node.
CONSIDERED = 256


@dataclass(frozen=True)
class Guide:
    """position: of the root, the pending token. noise: whether a sampled draw's noise is used, or only its odds."""

    sampling: Sampling = field(default_factory=Sampling)
    position: int = 0
    noise: bool = True

    def candidates(self, logprobs: Row, depth: int, count: int, ids: Tokens | None = None) -> list[tuple[int, float]]:
        """The `count` likeliest draws at `depth` tokens after the root, best first, each with its odds in [0, 1].

        logprobs: [n] of the tokens `ids` [n], ascending; of all tokens when None.
        """
        assert depth >= 1
        if self.sampling.temperature == 0:
            best = _largest(logprobs, count)
            odds = np.exp(logprobs[best].astype(np.float64))
            chosen = best
        else:
            chosen, scores = self._scores(logprobs, depth, ids)
            if not len(chosen):
                return []  # what the drafter computed are no probabilities
            best = _largest(scores, count)
            chosen, odds = chosen[best], _softmax(scores)[best]
        tokens = chosen if ids is None else ids[chosen]
        return [(int(token), float(min(1.0, chance))) for token, chance in zip(tokens, odds, strict=True)]

    @property
    def by_noise(self) -> bool:
        """Whether candidates are ranked with the noise of their draw."""
        return self.noise and self.sampling.temperature > 0

    def elected(self, tokens: Sequence[int], shares: Sequence[float], depth: int, trust: float) -> Sequence[float]:
        """The odds of `tokens` at `depth` tokens after the root, by their shares of the draws that were observed.

        Temperature, filters and bias have acted on the observed draws, so a score is log share + trust * noise: the
        draw's own where the shares are the probabilities that it goes by (trust 1), the share alone where they say
        nothing of it (0). shares: above 0, 1 together at most; so are the odds, their softmax times what they come to.
        """
        assert depth >= 1
        if not self.by_noise:
            return shares
        seed, position = self.sampling.seed, self.position + depth
        powers = [
            share * math.exp(trust * token_noise(seed, position, token))
            for token, share in zip(tokens, shares, strict=True)
        ]
        scale = sum(shares) / sum(powers)
        return [power * scale for power in powers]

    def _scores(self, logprobs: Row, depth: int, ids: Tokens | None) -> tuple[Tokens, Scores]:
        """Places in `logprobs` that a draw may take, and their log p / T with the noise of their position."""
        places, scores = tempered(logprobs, self.sampling)
        if len(places) > CONSIDERED:
            likeliest = np.sort(_largest(scores, CONSIDERED))
            places, scores = places[likeliest], scores[likeliest]
        if self.by_noise:
            tokens = places if ids is None else ids[places]
            scores = scores + gumbel_noise(self.sampling.seed, self.position + depth, tokens)
        return places, scores


def _largest(values: Row | Scores, count: int) -> Tokens:
    """Places of the `count` largest values, largest first; of equal ones the first comes first."""
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        places = np.flatnonzero(values >= threshold)
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind="stable")][:count]


def _softmax(scores: Scores) -> Scores:
    powers: Scores = np.exp(scores - scores.max())
    odds: Scores = powers / powers.sum()
    return odds
