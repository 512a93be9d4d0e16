"""The draws over a pass by one kernel: a few numbers of each row come to the host, and no row of logits does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from kernels.sample.draws import DTYPES, MAX_ROWS, MAX_TOP, MAX_VOCABULARY, MIN_VOCABULARY, Draw
from worker.engine.kernel_set import KernelSet
from worker.engine.logprobs import Likelihood
from worker.engine.sampling import Sampling


@dataclass(frozen=True)
class KernelDraws:
    """Of each node. tokens: NOTHING where none can be drawn. doubtful: float32 cannot tell which token wins the draw.

    likelihoods: of `tokens`, which are likely ones where they are doubtful; empty where nobody asked.
    """

    tokens: list[int]
    doubtful: list[bool]
    likelihoods: list[Likelihood]


def draw_by_kernel(
    logits: mx.array, sampling: Sampling, positions: Sequence[int], kernels: KernelSet, top: int | None
) -> KernelDraws | None:
    """Draw from all rows of logits [N, vocabulary], bias applied; None where no kernel fits.

    positions: absolute, of each draw. top: of the likeliest tokens to list; None for no likelihoods.
    """
    rows, vocabulary = logits.shape
    if rows > MAX_ROWS or not MIN_VOCABULARY <= vocabulary <= MAX_VOCABULARY:
        return None
    if logits.dtype not in DTYPES or (top or 0) > MAX_TOP or sampling.top_k >= 2**32:
        return None
    sample = kernels.sampler(logits.dtype)
    if sample is None:
        return None
    assert len(positions) == rows
    found = sample(logits, [_draw(sampling, position) for position in positions], top or 0)
    if top is None:
        mx.eval(found.tokens, found.needs_host)
        likelihoods: list[Likelihood] = []
    else:
        mx.eval(found.tokens, found.needs_host, found.logprobs, found.top_tokens, found.top_logprobs)
        listed = zip(*map(_numbers, (found.logprobs, found.top_tokens, found.top_logprobs)), strict=True)
        likelihoods = [_likelihood(*of_row) for of_row in listed]
    return KernelDraws(_numbers(found.tokens), _numbers(found.needs_host), likelihoods)


def _draw(sampling: Sampling, position: int) -> Draw:
    return Draw(
        sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, seed=sampling.seed, position=position
    )


def _numbers(array: mx.array) -> list[Any]:
    return array.tolist()  # type: ignore[return-value]


def _likelihood(logprob: float, tokens: Sequence[int], values: Sequence[float]) -> Likelihood:
    return Likelihood(logprob, [(token, value) for token, value in zip(tokens, values, strict=True) if token >= 0])
