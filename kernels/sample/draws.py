"""What a draw asks for and gives, and its form as the kernels read it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

MAX_ROWS = 32
MIN_VOCABULARY = 8
MAX_VOCABULARY = 2**18
MAX_TOP = 32
DTYPES = (mx.float32, mx.bfloat16, mx.float16)

STEPS = 2048
"""Steps of 1/64 below the best log-probability into which a kernel sorts the tokens; the last is open below."""
PARAMETERS = 16
SHARPEST = 1e30
"""Stands for larger 1 / temperature: every token but the likeliest is out of reach, and 0 times it is still 0."""


@dataclass(frozen=True)
class Draw:
    """How the token of a row is drawn.

    temperature 0 is greedy. Off: top_p 1, top_k 0, min_p 0. seed: 64 bits. position: absolute, of the token to be
    drawn, below 2^32.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("temperature", 0 <= self.temperature < math.inf, "a number from 0"),
            ("top_p", 0 <= self.top_p <= 1, "0 to 1"),
            ("top_k", 0 <= self.top_k < 2**32, "0 to 2^32 - 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("seed", 0 <= self.seed < 2**64, "0 to 2^64 - 1"),
            ("position", 0 <= self.position < 2**32, "0 to 2^32 - 1"),
        ):
            if not holds:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {expected}")


@dataclass(frozen=True)
class Drawn:
    """tokens int32 [N]: -1 for a row that leaves none to draw. logprobs float32 [N]: of the drawn tokens.

    needs_host bool [N]: float32 cannot tell who wins the row; its token is then only a likely one, and the caller draws
    with float64. top_tokens int32 [N, top], top_logprobs float32 [N, top]: the likeliest, in order, of equal ones the
    lowest ids first; -1 and minus infinity where fewer tokens are possible.
    """

    tokens: mx.array
    logprobs: mx.array
    needs_host: mx.array
    top_tokens: mx.array
    top_logprobs: mx.array


def check_arguments(logits: mx.array, draws: Sequence[Draw], top: int) -> None:
    """Raises ValueError unless the kernels can take these arguments."""
    if logits.ndim != 2 or logits.dtype not in DTYPES:
        raise ValueError(f"logits are {logits.dtype} {logits.shape}; expected float32, bfloat16 or float16 [N, V]")
    rows, vocabulary = logits.shape
    if rows != len(draws) or not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"{rows} rows of logits and {len(draws)} draws; expected 1 to {MAX_ROWS}, as many of each")
    if not MIN_VOCABULARY <= vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"a vocabulary of {vocabulary}; expected {MIN_VOCABULARY} to {MAX_VOCABULARY}")
    if not 0 <= top <= MAX_TOP:
        raise ValueError(f"top is {top}; expected 0 to {MAX_TOP}")


def normalisers(logits: mx.array) -> mx.array:
    """logsumexp [N] of each row, in the logits' type: MLX's own, so that log-probabilities are the same bits as its."""
    return mx.logsumexp(logits, axis=-1)


def parameters(draws: Sequence[Draw], top: int) -> mx.array:
    """The draws as uint32 [N, 16]; `metal.metal` lists the columns."""
    return mx.array(np.array([_words(draw, top) for draw in draws], dtype=np.uint32))


@functools.cache
def scales() -> mx.array:
    """exp(-step / 64) 2^25 as uint32 [STEPS]: a mantissa of 26 bits times 64, plus how far to shift it right."""
    mantissas, exponents = np.frexp(np.exp(-np.arange(STEPS) / 64.0))
    fixed = np.rint(np.ldexp(mantissas, 26)).astype(np.uint64)
    return mx.array((fixed * np.uint64(64) + (1 - exponents).astype(np.uint64)).astype(np.uint32))


def _words(draw: Draw, top: int) -> list[int]:
    sharpness = min(1 / draw.temperature, SHARPEST) if draw.temperature > 1 / SHARPEST else SHARPEST
    log_min_p = math.log(draw.min_p) if draw.min_p > 0 else -math.inf
    words = [
        int(draw.temperature == 0),
        draw.top_k,
        int(draw.top_p < 1),
        min(round(draw.top_p * 2**32), 2**32 - 1),
        _bits(log_min_p),
        _bits(sharpness),
        draw.seed & 0xFFFFFFFF,
        draw.seed >> 32,
        draw.position,
        top,
    ]
    return words + [0] * (PARAMETERS - len(words))


@functools.lru_cache(maxsize=64)  # the rows of a pass ask for the same ones
def _bits(value: float) -> int:
    bits: npt.NDArray[np.uint32] = np.array([value], dtype=np.float32).view(np.uint32)
    return int(bits[0])
