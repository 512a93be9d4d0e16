"""What a model-based drafter expects next: log-probabilities of the likeliest tokens."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from worker.engine.drafters.guide import CONSIDERED
from worker.engine.drafters.largest import largest
from worker.engine.sampling import Row, Tokens, log_softmax


class NextTokens(NamedTuple):
    """logprobs: [n], of the tokens `ids` [n], ascending; of all tokens when None."""

    logprobs: Row
    ids: Tokens | None = None


def shortlist(logits: mx.array, ids: mx.array | None = None) -> list[NextTokens]:
    """The likeliest tokens of each row of logits [M, V], with log-probabilities over all of the row.

    ids: [M, V] the tokens that the logits are of, in any order; their places when None. A row keeps as many as a guide
    considers: the host never sees a whole vocabulary, whose transfer and ranking would cost more than a small model.
    """
    logprobs = log_softmax(logits.astype(mx.float32))
    if logits.shape[-1] > CONSIDERED:
        best = largest(logprobs, CONSIDERED)
        logprobs = mx.take_along_axis(logprobs, best, axis=-1)
        ids = best if ids is None else mx.take_along_axis(ids, best, axis=-1)
    if ids is None:
        return [NextTokens(row) for row in np.array(logprobs)]
    mx.eval(logprobs, ids)
    rows = zip(np.array(logprobs), np.array(ids).astype(np.int64), strict=True)
    return [_ascending(row, tokens) for row, tokens in rows]


def _ascending(logprobs: Row, ids: Tokens) -> NextTokens:
    order = np.argsort(ids)
    return NextTokens(logprobs[order], ids[order])
