"""Log-probabilities of the drawn tokens and of their likeliest rivals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from api.schemas import TokenLogprob, TopLogprob
from worker.engine.detokenizer import Decode
from worker.engine.sampling import Row


class Likelihood(NamedTuple):
    """logprob: of a drawn token. best: the likeliest tokens and their log-probabilities, in order; of equal ones the
    lowest ids first.

    A token that cannot be drawn is no rival: its logprob, minus infinity, does not survive JSON either.
    """

    logprob: float
    best: list[tuple[int, float]]


def likelihood_in(row: Row, token: int, top: int) -> Likelihood:
    """That of `token` in a row [vocabulary] of log-probabilities, with the `top` likeliest."""
    top = min(top, len(row))
    best = np.empty(0, dtype=np.int64)
    if top:
        # A partition leaves open which of equal values it takes: all that equal its last one, by their ids.
        least = np.partition(row, len(row) - top)[len(row) - top]
        best = np.flatnonzero((row >= least) & (row > -np.inf))
        best = best[np.argsort(-row[best], kind="stable")][:top]
    return Likelihood(float(row[token]), [(int(one), float(row[one])) for one in best])


class LogprobRecord:
    """One entry per drawn token. Values are of the model's distribution after bias and penalties, at temperature 1.

    top: how many of the likeliest tokens an entry has.
    """

    def __init__(self, top: int, decode: Decode) -> None:
        self.top = top
        self._decode = decode
        self._entries: list[TokenLogprob] = []

    def add(self, token: int, likelihood: Likelihood) -> None:
        """Record a draw."""
        rivals = [TopLogprob(token_id=one, token=self._decode([one]), logprob=value) for one, value in likelihood.best]
        self._entries.append(
            TokenLogprob(token_id=token, token=self._decode([token]), logprob=likelihood.logprob, top=rivals)
        )

    def of(self, tokens: Sequence[int]) -> list[TokenLogprob]:
        """The entries of a completion: draws past its end are left out."""
        entries = self._entries[: len(tokens)]
        assert [entry.token_id for entry in entries] == list(tokens)
        return entries
