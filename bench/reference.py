"""The peer: mlx-lm's own plain decoding of the same prompts."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

from worker.engine.loading import Target
from worker.engine.sampling import Sampling, draw


@dataclass(frozen=True)
class PlainText:
    """Token ids without the end token; decode_tps as JobStats defines it."""

    tokens: list[int]
    decode_tps: float


def plain_decoding(
    target: Target, prompt: list[int], max_tokens: int, sampler: Callable[[mx.array], mx.array] | None = None
) -> PlainText:
    """Decode with `generate_step`, one token per pass, until an end token or `max_tokens`."""
    begun = time.perf_counter()
    first = begun
    tokens: list[int] = []
    for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=max_tokens, sampler=sampler):
        if not tokens:
            first = time.perf_counter()
        if token in target.tokenizer.eos_token_ids:
            break
        tokens.append(int(token))
    spent = time.perf_counter() - first
    return PlainText(tokens, (len(tokens) - 1) / spent if len(tokens) > 1 else float("nan"))


def keyed_sampler(sampling: Sampling, prompt_length: int) -> Callable[[mx.array], mx.array]:
    """The engine's keyed draw as a sampler of `generate_step`: each call is the next absolute position."""
    position = prompt_length

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal position
        token = draw(np.array(logprobs[0].astype(mx.float32)), sampling, position)
        position += 1
        return mx.array([token])

    return sample
