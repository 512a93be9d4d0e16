"""The reference: mlx-lm's own plain decoding."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

from worker.engine.sampling import Sampling, draw

Sampler = Callable[[mx.array], mx.array]


def plain_tokens(
    model: Any,
    prompt: Sequence[int],
    count: int,
    *,
    sampling: Sampling | None = None,
    processors: list[Any] | None = None,
    end_tokens: Sequence[int] = (),
) -> list[int]:
    """`count` tokens of `generate_step`, or fewer when an end token comes; greedy unless `sampling` is given."""
    sampler = keyed_sampler(sampling, len(prompt)) if sampling else None
    steps = generate_step(
        mx.array(list(prompt)), model, max_tokens=count, sampler=sampler, logits_processors=processors
    )
    tokens: list[int] = []
    for token, _ in steps:
        if token in end_tokens:
            break
        tokens.append(int(token))
    return tokens


def keyed_sampler(sampling: Sampling, position: int) -> Sampler:
    """The keyed draw; every call is the next absolute position."""
    positions = iter(range(position, position + 10**6))

    def sample(logprobs: mx.array) -> mx.array:
        return mx.array([draw(np.array(logprobs[0].astype(mx.float32)), sampling, next(positions))])

    return sample
