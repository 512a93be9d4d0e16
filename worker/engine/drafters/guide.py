"""The guide: how a drafter's probabilities become guesses at the target's draw.

A greedy draw takes the likeliest token. A sampled one takes the largest log p / T + g, where the noise g is known
beforehand (`philox`): a drafter that ranks by its own log p / T plus that very noise guesses the draw itself, and the
text stays exact, because the target draws as ever (drafter-invariant speculative decoding, arXiv:2408.07978). Bias,
penalties and forced or suppressed tokens, which the target's logits get before a draw, the drafter's get as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from worker.engine.philox import gumbel_noise, token_noise
from worker.engine.sampling import History, Row, Sampling, Tokens, biased, processed, tempered
from worker.engine.tree import TokenTree

Scores = npt.NDArray[np.float64]
Mode = Literal["greedy", "noise", "odds"]
"""What a request's candidates are ranked by, and so what their confidences are: probabilities, the draws' own noise on
top of them, or the odds of a draw without it."""

# Candidates that the noise may lift: beyond so many the likeliest tokens have no chance worth a node.
CONSIDERED = 256


@dataclass(frozen=True)
class Guide:
    """history: the text up to the root, the pending token, and with it. noise: whether a sampled draw's noise is used,
    or only its odds."""

    sampling: Sampling = field(default_factory=Sampling)
    history: History = field(default_factory=lambda: History((), ()))
    noise: bool = True

    @property
    def mode(self) -> Mode:
        if self.sampling.temperature == 0:
            return "greedy"
        return "noise" if self.noise else "odds"

    def processed(
        self,
        logits: mx.array,
        grown: TokenTree | None = None,
        nodes: Sequence[int] = (),
        ids: mx.array | None = None,
    ) -> mx.array:
        """A drafter's logits [M, columns] as the target's will be processed: with bias, penalties, and tokens forced.

        nodes: M of `grown`, the nodes that the rows follow; without a tree, as in a block whose tokens are not chosen
        yet, all rows go by the text up to the root. ids: [M, columns], the tokens that the logits are of, in any order;
        their places when None. What the request says of other tokens is of no account.
        """
        if not self.sampling.changes_logits:
            return logits
        paths = [()] * len(logits) if grown is None else [_tokens_to(grown, node) for node in nodes]
        histories = [replace(self.history, emitted=path) for path in paths]
        whole = _spread(logits, ids, 1 + max(map(self._largest_named, histories)))
        if self.sampling.needs_history:
            rows = enumerate(histories)
            whole = mx.concatenate([processed(whole[row : row + 1], self.sampling, history) for row, history in rows])
        else:
            whole = biased(whole, self.sampling)
        return whole[:, : logits.shape[1]] if ids is None else mx.take_along_axis(whole, ids, axis=-1)

    def candidates(self, logprobs: Row, depth: int, count: int, ids: Tokens | None = None) -> list[tuple[int, float]]:
        """The `count` likeliest draws at `depth` tokens after the root, best first, each with its odds in [0, 1].

        logprobs: [n], of all tokens; or of the likeliest, `ids` [n], ascending, with probabilities among all of them.
        """
        assert depth >= 1
        if self.mode == "greedy":
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

    def barred(self, depth: int) -> frozenset[int]:
        """Tokens that cannot be drawn at `depth` tokens after the root: those that may not end the text yet."""
        length = self.history.completion_length + depth - 1
        return self.sampling.suppressed if length < self.sampling.min_tokens else frozenset()

    def elected(self, tokens: Sequence[int], shares: Sequence[float], depth: int, trust: float) -> Sequence[float]:
        """The odds of `tokens` at `depth` tokens after the root, by their shares of the draws that were observed.

        Temperature, filters and bias have acted on the observed draws, so a score is log share + trust * noise: the
        draw's own where the shares are the probabilities that it goes by (trust 1), the share alone where they say
        nothing of it (0). shares: above 0, 1 together at most; so are the odds, their softmax times what they come to.
        """
        assert depth >= 1
        if self.mode != "noise":
            return shares
        seed, position = self.sampling.seed, self._position(depth)
        powers = [
            share * math.exp(trust * token_noise(seed, position, token))
            for token, share in zip(tokens, shares, strict=True)
        ]
        scale = sum(shares) / sum(powers)
        return [power * scale for power in powers]

    def _scores(self, logprobs: Row, depth: int, ids: Tokens | None) -> tuple[Tokens, Scores]:
        """Places in `logprobs` that a draw may take, and their log p / T with the noise of their position."""
        places, scores = tempered(logprobs, self.sampling, mass=None if ids is None else 1.0)
        if len(places) > CONSIDERED:
            likeliest = np.sort(_largest(scores, CONSIDERED))
            places, scores = places[likeliest], scores[likeliest]
        if self.mode == "noise":
            tokens = places if ids is None else ids[places]
            scores = scores + gumbel_noise(self.sampling.seed, self._position(depth), tokens)
        return places, scores

    def _position(self, depth: int) -> int:
        """Of the draw of a token at `depth` after the root."""
        return self.history.position + depth - 1

    def _largest_named(self, history: History) -> int:
        """The largest id of which the request says anything after `history`."""
        sampling = self.sampling
        penalised = history.last(sampling.penalty_context_size)
        return max([*sampling.logit_bias, *sampling.suppressed, *penalised, sampling.think_end or 0])


def _tokens_to(grown: TokenTree, node: int) -> list[int]:
    """The guesses down to `node`."""
    return [grown.tokens[one] for one in grown.path(node)[1:]]


def _spread(logits: mx.array, ids: mx.array | None, width: int) -> mx.array:
    """Logits [M, at least `width`] by token; minus infinity for tokens that `logits` say nothing of."""
    if ids is None:
        missing = max(0, width - logits.shape[1])
        return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-math.inf) if missing else logits
    width = max(width, 1 + int(np.array(ids).max()))
    nowhere = mx.full((len(logits), width), -math.inf, dtype=logits.dtype)
    return mx.put_along_axis(nowhere, ids, logits, axis=-1)


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
