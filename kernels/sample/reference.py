"""The draw in float64 on the host, for any device: what the kernels have to agree with.

Log-probabilities l = x - logsumexp(x), in the logits' own type. With L = max l:

    top-p   keep l >= the largest value v for which the sum of exp(l) over l >= v reaches top_p of the sum over all
    min-p   keep l >= L + log(min_p), added in float32
    top-k   of the kept, the k largest, of equal ones the lowest ids
    draw    the kept token t with the largest (l[t] - L) / T + g[t]; temperature 0: the lowest t with l[t] = L
    noise   g = -log(-log1p(-u)), u = (bits + 1/2) / 2^32, bits of Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011)
            with counter (t div 4, position, 0, 0), word t mod 4, and the seed as key
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernels.sample.draws import Draw, Drawn, normalisers

Row = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]


def reference_sample(logits: mx.array, draws: Sequence[Draw], top: int = 0) -> Drawn:
    """Draws row by row; needs_host is False throughout, for this is the host."""
    rows = np.array((logits - normalisers(logits)[:, None]).astype(mx.float32))
    tokens = [draw_token(row, draw) for row, draw in zip(rows, draws, strict=True)]
    logprobs = [float(row[token]) if token >= 0 else -math.inf for row, token in zip(rows, tokens, strict=True)]
    top_tokens = np.full((len(draws), top), -1, dtype=np.int32)
    top_logprobs = np.full((len(draws), top), -np.inf, dtype=np.float32)
    for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        best = np.argsort(-row, kind="stable")[:top]
        best = best[row[best] > -np.inf] if token >= 0 else best[:0]
        top_tokens[index, : len(best)] = best
        top_logprobs[index, : len(best)] = row[best]
    return Drawn(
        mx.array(np.array(tokens, dtype=np.int32)),
        mx.array(np.array(logprobs, dtype=np.float32)),
        mx.zeros((len(draws),), dtype=mx.bool_),
        mx.array(top_tokens),
        mx.array(top_logprobs),
    )


def draw_token(row: Row, draw: Draw) -> int:
    """The token drawn from log-probabilities [V]; -1 when they leave none."""
    best = row.max()
    if not np.isfinite(best):
        return -1
    if draw.temperature == 0:
        return int(np.argmax(row))
    tokens = survivors(row, draw)
    with np.errstate(over="ignore"):
        scores = (row[tokens].astype(np.float64) - float(best)) / draw.temperature
    return int(tokens[np.argmax(scores + gumbel_noise(draw.seed, draw.position, tokens))])


def survivors(row: Row, draw: Draw) -> Tokens:
    """The tokens of log-probabilities [V] that top-p, min-p and top-k leave, ascending."""
    order = np.argsort(-row, kind="stable")
    values = row[order]
    kept = int(np.count_nonzero(values > -np.inf))
    if draw.top_p < 1:
        mass = np.cumsum(np.exp(values, dtype=np.float64))
        within = np.count_nonzero(mass[:-1] < draw.top_p * mass[-1])
        kept = min(kept, int(np.count_nonzero(values >= values[within])))
    if draw.min_p > 0:
        kept = min(kept, int(np.count_nonzero(values >= values[0] + np.float32(math.log(draw.min_p)))))
    if draw.top_k > 0:
        kept = min(kept, draw.top_k)
    return np.sort(order[:kept])


def gumbel_noise(seed: int, position: int, tokens: Tokens) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each of `tokens` [n]."""
    uniform = (random_bits(seed, position, tokens).astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log1p(-uniform))


def random_bits(seed: int, position: int, tokens: Tokens) -> npt.NDArray[np.uint32]:
    """32 random bits for each of `tokens` [n]."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0 = (tokens // 4).astype(np.uint64)
    c1, c2, c3 = np.full_like(c0, position), np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (right >> half) ^ c1 ^ np.uint64(k0), right & low
        c2, c3 = (left >> half) ^ c3 ^ np.uint64(k1), left & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.choose(tokens % 4, (c0, c1, c2, c3)).astype(np.uint32)
