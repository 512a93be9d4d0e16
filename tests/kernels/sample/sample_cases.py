"""Rows of logits and draws for the kernel, and what the engine draws from them."""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.sample.draws import Draw
from worker.engine.sampling import NoTokenLeft, Sampling, draw, log_softmax

DRAWS = [
    Draw(),
    Draw(temperature=1.0, seed=1, position=0),
    Draw(temperature=0.8, top_p=0.95, seed=2**64 - 1, position=17),
    Draw(temperature=1.5, top_p=0.5, seed=2**32, position=2**32 - 1),
    Draw(temperature=0.7, top_k=20, seed=3, position=400),
    Draw(temperature=1.0, top_k=1, seed=4, position=401),
    Draw(temperature=2.0, min_p=0.05, seed=5, position=402),
    Draw(temperature=0.6, top_p=0.9, top_k=40, min_p=0.01, seed=6, position=403),
    Draw(temperature=5.0, top_p=0.99999, top_k=300, seed=7, position=404),
    Draw(temperature=1e-40, top_p=0.9, seed=8, position=405),
    Draw(temperature=1.0, top_p=0.0, seed=9, position=406),
    Draw(temperature=1.0, min_p=1.0, top_k=3, seed=10, position=407),
]
LONG_TIES = Draw(temperature=1.0, top_k=150, seed=11, position=408)


def logits_of(kind: str, vocabulary: int, seed: int) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    if kind == "spread":
        row = random.normal(0, 3, vocabulary)
    elif kind == "flat":
        row = random.normal(0, 0.02, vocabulary)
    elif kind == "ties":
        row = np.round(random.normal(0, 1, vocabulary))
    elif kind == "one takes all":
        row = np.full(vocabulary, -30.0)
        row[vocabulary // 3] = 20
    else:
        assert kind == "mostly impossible"
        row = np.where(np.arange(vocabulary) % 7 == 5, random.normal(0, 1, vocabulary), -np.inf)
    return row.astype(np.float32)


KINDS = ["spread", "flat", "ties", "mostly impossible", "one takes all"]


def rows_of(count: int, vocabulary: int, dtype: mx.Dtype, first: int = 0) -> mx.array:
    """Rows of all kinds in turn."""
    rows = [logits_of(KINDS[(first + i) % len(KINDS)], vocabulary, first + i) for i in range(count)]
    return mx.array(np.stack(rows)).astype(dtype)


def engine_logprobs(logits: mx.array) -> NDArray[np.float32]:
    return np.array(log_softmax(logits).astype(mx.float32))


def sampling_of(asked: Draw) -> Sampling:
    return Sampling(asked.temperature, asked.top_p, asked.top_k, asked.min_p, seed=asked.seed)


def engine_token(row: NDArray[np.float32], asked: Draw) -> int:
    """What the engine draws from log-probabilities; -1 for nothing."""
    try:
        return draw(row, sampling_of(asked), asked.position)
    except NoTokenLeft:
        return -1


def engine_tokens(logits: mx.array, draws: list[Draw]) -> list[int]:
    return [engine_token(row, asked) for row, asked in zip(engine_logprobs(logits), draws, strict=True)]
