"""From a node's logits to the target's draw.

Order, as in mlx-lm: logit bias and penalties on the logits, log-softmax, all in the model's own float type and with
its operations, bit for bit; then top-p, min-p and top-k on the probabilities, temperature last. The draw is Gumbel-max:
argmax of log p / T + g with noise g keyed by (seed, absolute position, token id) (`philox`). It equals a sample from
softmax(log p / T), and the text of a seed does not depend on how many tokens a pass verifies.

Where this differs from mlx-lm's filters, on purpose:
- The mass of the nucleus is summed in float64. mlx-lm sums in float32, so for a token whose mass from above equals
  top_p to within rounding it may decide otherwise.
- min-p compares in float32, and log p / T is float64. mlx-lm does both in the model's type: with bfloat16 its min-p is
  some percent off, and log p / T has 8 bits.
- Of equal tokens at the edge of top-k the lowest ids stay; mlx-lm leaves open which.
- A bias above the range of the logits' type gives its token all the probability; in mlx-lm nothing is a number then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from api.schemas import RequestError
from worker.engine.philox import gumbel_noise
from worker.engine.reasoning import Reasoning

Row = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]
# Tokens sorted in a first try to find the nucleus; more are sorted only when its mass lies beyond them.
NUCLEUS_TRY = 1024


NOTHING = -1
"""Stands for the token of a row that has none to draw, where raising is not possible yet."""


class NoTokenLeft(Exception):
    """No token can be drawn: logit bias, penalties and min_tokens leave none, or the logits are not numbers."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"no token can be drawn at position {position}: logit_bias, penalties and min_tokens leave none, or the "
            "model's logits are not numbers"
        )
        self.error = RequestError(code="no_token_left", message=str(self))


@dataclass(frozen=True)
class Sampling:
    """Resolved sampling values.

    temperature 0 is greedy. Off: top_k 0, top_p 1, min_p 0, presence and frequency penalty 0, repetition penalty 1.

    penalty_context_size: how many of the last tokens of prompt and completion the penalties look at.
    seed: 64 bits. suppressed: ids that may not end the text before `min_tokens` completion tokens.
    thinking_budget: completion tokens within the reasoning after which `think_end` is forced.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_context_size: int = 20
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    min_tokens: int = 0
    suppressed: frozenset[int] = frozenset()
    thinking_budget: int | None = None
    think_start: int | None = None
    think_end: int | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether a row is processed at all before its log-softmax."""
        return bool(self.logit_bias) or self.needs_history

    @property
    def needs_history(self) -> bool:
        """Whether a row's processing depends on the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or (self.min_tokens > 0 and bool(self.suppressed))
            or self.thinking_budget is not None
        )


@dataclass(frozen=True)
class History:
    """Tokens before a draw: the prompt, the completion, and those that the running pass has emitted already.

    reasoning: after prompt and completion; needed where a thinking budget counts.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    emitted: Sequence[int] = ()
    reasoning: Reasoning | None = None

    @property
    def position(self) -> int:
        """Absolute position of the token to be drawn."""
        return len(self.prompt) + len(self.completion) + len(self.emitted)

    @property
    def completion_length(self) -> int:
        return len(self.completion) + len(self.emitted)

    def last(self, size: int) -> list[int]:
        emitted = list(self.emitted[-size:])
        if len(emitted) < size:
            emitted = [*self.completion[len(emitted) - size :], *emitted]
        if len(emitted) < size:
            emitted = [*self.prompt[len(emitted) - size :], *emitted]
        return emitted


def log_softmax(logits: mx.array) -> mx.array:
    """logits - logsumexp(logits), in the logits' own type.

    Rounding in this subtraction can merge close logits into ties; plain decoding takes its argmax after it, so we do.
    """
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def likeliest(logprobs: mx.array) -> mx.array:
    """The first of the likeliest tokens [N] of log-probabilities [N, vocabulary]; NOTHING where none can be drawn.

    Such a row has logits that are all minus infinity, or one that is infinite or not a number: `log_softmax` leaves no
    finite value at its maximum.
    """
    best = mx.argmax(logprobs, axis=-1, keepdims=True)
    finite = mx.isfinite(mx.take_along_axis(logprobs, best, axis=-1))
    return mx.where(finite, best.astype(mx.int32), NOTHING)[:, 0]


def drawn(token: int, position: int) -> int:
    """`token`, which the device chose for an absolute position. Raises NoTokenLeft when that is NOTHING."""
    if token == NOTHING:
        raise NoTokenLeft(position)
    return token


def biased(logits: mx.array, sampling: Sampling) -> mx.array:
    """Logits [N, vocabulary] plus the logit bias.

    A bias below the range of the logits' type forbids its token. One above would make them infinite, so half of the
    range stands for it: all the probability, and room to add the logit.
    """
    if not sampling.logit_bias:
        return logits
    ids = mx.array(list(sampling.logit_bias))
    values = mx.minimum(mx.array(list(sampling.logit_bias.values())), mx.finfo(logits.dtype).max / 2)
    return logits.at[:, ids].add(values.astype(logits.dtype))


def processed(logits: mx.array, sampling: Sampling, history: History) -> mx.array:
    """One row of logits [1, vocabulary] after bias, penalties and forced or suppressed tokens."""
    row = penalised(biased(logits, sampling), sampling, history.last(sampling.penalty_context_size))
    if history.completion_length < sampling.min_tokens and sampling.suppressed:
        row = _masked(row, sorted(sampling.suppressed))
    if _thinking_is_over(sampling, history):
        assert sampling.think_end is not None
        row = mx.where(mx.arange(row.shape[-1]) == sampling.think_end, mx.zeros_like(row), -math.inf)
    return row


def penalised(row: mx.array, sampling: Sampling, context: Sequence[int]) -> mx.array:
    """Repetition (arXiv:1909.05858), presence and frequency penalties of a row [1, vocabulary] over `context`.

    Repetition divides a positive logit and multiplies a negative one; presence subtracts once per distinct token,
    frequency once per occurrence, one after the other, which rounds as mlx-lm does. The result is a new array: the row
    belongs to the pass, whose other nodes read it too.
    """
    if not context:
        return row
    tokens = mx.array([list(context)])
    chosen = mx.take_along_axis(row, tokens, axis=-1)
    if sampling.repetition_penalty != 1.0:
        penalty = sampling.repetition_penalty
        chosen = mx.where(chosen < 0, chosen * penalty, chosen / penalty)
    if sampling.presence_penalty:
        chosen = chosen - sampling.presence_penalty
    # A token that occurs twice is written twice, with the same value.
    row = mx.put_along_axis(row, tokens, chosen, axis=-1)
    if sampling.frequency_penalty:
        row = row.at[:, tokens[0]].subtract(sampling.frequency_penalty)
    return row


def draw(logprobs: Row, sampling: Sampling, position: int) -> int:
    """Choose a token from log-probabilities [vocabulary]: greedy, or the keyed Gumbel-max draw.

    Of equal scores the lowest id wins. Raises NoTokenLeft.
    """
    if not np.isfinite(logprobs.max()):
        raise NoTokenLeft(position)
    if sampling.temperature == 0:
        return int(np.argmax(logprobs))
    tokens, scores = tempered(logprobs, sampling)
    return int(tokens[np.argmax(scores + gumbel_noise(sampling.seed, position, tokens))])


def tempered(logprobs: Row, sampling: Sampling, mass: float | None = None) -> tuple[Tokens, npt.NDArray[np.float64]]:
    """The distribution of a draw: the tokens [n] that it may take, ascending, and their log p / T [n], the best 0.

    mass: see `nucleus_threshold`. In float64: a temperature near zero overflows to minus infinity for all but the best,
    which is a greedy draw.
    """
    tokens = candidates(logprobs, sampling, mass)
    with np.errstate(over="ignore"):
        return tokens, (logprobs[tokens].astype(np.float64) - float(logprobs.max())) / sampling.temperature


def odds(logprobs: Row, sampling: Sampling, tokens: Sequence[int]) -> tuple[list[float], float]:
    """The probability that a draw at a temperature above 0 gives to each of `tokens`, and to all others together."""
    drawable, scores = tempered(logprobs, sampling)
    weights = np.exp(scores)
    shares = weights / weights.sum()
    named = np.isin(drawable, tokens)
    share_of = dict(zip(drawable[named].tolist(), shares[named].tolist(), strict=True))
    return [share_of.get(token, 0.0) for token in tokens], float(shares[~named].sum())


def candidates(logprobs: Row, sampling: Sampling, mass: float | None = None) -> Tokens:
    """Ids that survive top-p, then min-p, then top-k, ascending. mass: see `nucleus_threshold`."""
    threshold = np.float32(-np.inf)
    if sampling.top_p < 1:
        threshold = nucleus_threshold(logprobs, sampling.top_p, mass)
    if sampling.min_p > 0:
        threshold = max(threshold, logprobs.max() + np.float32(math.log(sampling.min_p)))
    tokens = np.flatnonzero((logprobs >= threshold) & (logprobs > -np.inf))
    if 0 < sampling.top_k < len(tokens):
        best = np.argsort(-logprobs[tokens], kind="stable")[: sampling.top_k]
        tokens = np.sort(tokens[best])
    return tokens


def nucleus_threshold(logprobs: Row, top_p: float, mass: float | None = None) -> np.float32:
    """Log-probability of the least likely token of the nucleus: the mass above it is still below `top_p`.

    mass: of all tokens, where `logprobs` are those of the likeliest ones only; when None, what they come to.
    """
    total = float(np.exp(logprobs, dtype=np.float64).sum()) if mass is None else mass
    size = min(NUCLEUS_TRY, len(logprobs))
    while True:
        top = np.sort(np.partition(logprobs, len(logprobs) - size)[len(logprobs) - size :])[::-1]
        above = np.cumsum(np.exp(top, dtype=np.float64))
        kept = 1 + int(np.count_nonzero(above[:-1] < top_p * total))
        if kept < size or size == len(logprobs):
            return np.float32(top[kept - 1])
        size = min(8 * size, len(logprobs))


def _thinking_is_over(sampling: Sampling, history: History) -> bool:
    if sampling.thinking_budget is None or sampling.think_end is None:
        return False
    assert history.reasoning is not None
    spent = history.reasoning.after(history.emitted)
    return spent is not None and spent >= sampling.thinking_budget


def _masked(row: mx.array, ids: Sequence[int]) -> mx.array:
    index = mx.array([list(ids)])
    return mx.put_along_axis(row, index, mx.full(index.shape, -math.inf, dtype=row.dtype), axis=-1)
