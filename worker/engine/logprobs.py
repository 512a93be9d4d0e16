"""Log-probabilities of the drawn tokens and of their likeliest rivals."""

from collections.abc import Sequence

import numpy as np

from api.schemas import TokenLogprob, TopLogprob
from worker.engine.detokenizer import Decode
from worker.engine.sampling import Row


class LogprobRecord:
    """One entry per drawn token. Values are of the model's distribution after bias and penalties, at temperature 1."""

    def __init__(self, top: int, decode: Decode) -> None:
        self._top = top
        self._decode = decode
        self._entries: list[TokenLogprob] = []

    def add(self, token: int, row: Row) -> None:
        """Record a draw from `row` [vocabulary]; only the requested values are kept.

        A token that cannot be drawn is no rival: its logprob, minus infinity, does not survive JSON either.
        """
        top = min(self._top, len(row))
        best = np.argpartition(-row, top - 1)[:top] if top else np.empty(0, dtype=np.int64)
        best = best[np.argsort(-row[best], kind="stable")]
        best = best[row[best] > -np.inf]
        rivals = [TopLogprob(token_id=int(i), token=self._decode([int(i)]), logprob=float(row[i])) for i in best]
        self._entries.append(
            TokenLogprob(token_id=token, token=self._decode([token]), logprob=float(row[token]), top=rivals)
        )

    def of(self, tokens: Sequence[int]) -> list[TokenLogprob]:
        """The entries of a completion: draws past its end are left out."""
        entries = self._entries[: len(tokens)]
        assert [entry.token_id for entry in entries] == list(tokens)
        return entries
