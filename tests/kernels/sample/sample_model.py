"""The kernels' arithmetic in numpy, for numbers of decisions that the emulator could not make.

float32 where the kernels have float32, 64-bit integers where they have those; sums in another order, which integers do
not notice (but for a unit where they are rounded down, 2^-27 of a total).
"""

import numpy as np
from numpy.typing import NDArray

from kernels.sample.draws import Draw, scales

F = np.float32
BOUND = F(2.0**-15)


def log32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = x.view(np.uint32) - np.uint32(0x3F3504F3)
    exponent = (shifted.view(np.int32) >> 23).astype(F)
    m = ((shifted & np.uint32(0x7FFFFF)) + np.uint32(0x3F3504F3)).view(F)
    z = (m - F(1)) / (m + F(1))
    y = z * z
    series = F(2) * z * (F(1) + y * (F(0.33333333) + y * (F(0.2) + y * (F(0.14285714) + y * F(0.11111111)))))
    return exponent * F(0.693359375) + (series + exponent * F(-2.12194440e-4))


def gumbel32(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    u = (bits.astype(F) + F(0.5)) * F(2.0**-32)
    near = np.full_like(u, F(0.125))
    for divisor in (7, 6, 5, 4, 3, 2, 1):
        near = F(1 / divisor) + u * near
    far = -log32(((~bits).astype(F) + F(0.5)) * F(2.0**-32))
    return -log32(np.where(bits < 0x20000000, u * near, far))


def masses(row: NDArray[np.float32]) -> NDArray[np.uint64]:
    """2^45 exp(row - max row) of each token, as the kernels approximate it."""
    distance = (row.max() - row) * F(64)
    steps = np.minimum(distance, F(2047)).astype(np.uint32)
    r = np.minimum(np.where(np.isfinite(distance), distance, F(2048)) - steps.astype(F), F(1)) * F(0.015625)
    series = F(1) - r * (F(0.5) - r * (F(0.16666667) - r * F(0.041666667)))
    lacks = (r * series * F(2**20) + F(0.5)).astype(np.uint64)
    scale = np.array(scales())[steps].astype(np.uint64)
    weights = ((np.uint64(2**20) - lacks) * (scale >> np.uint64(6))) >> (scale & np.uint64(63))
    return np.where(row > -np.inf, weights, np.uint64(0))


class RowModel:
    """The kernels' draws from one row [V] of log-probabilities under one set of filters, at any positions."""

    def __init__(self, row: NDArray[np.float32], asked: Draw) -> None:
        self._row = row
        self._sharpness = F(min(1 / asked.temperature, 1e30))
        order = np.argsort(-row, kind="stable")
        order = order[row[order] > -np.inf]
        values = row[order]
        kept = len(order)
        # above[i]: the mass of all values larger than values[i].
        to = np.cumsum(masses(row)[order])
        first_of_value = np.searchsorted(-values, -values, side="left")
        above = np.concatenate([[np.uint64(0)], to])[first_of_value]
        self._early = np.iinfo(np.uint64).max
        doubtful = False
        if asked.top_p < 1:
            total, share = int(to[-1]), min(round(asked.top_p * 2**32), 2**32 - 1)
            target, margin = (total * share) >> 32, total >> 18
            late, self._early = target + margin, max(target - margin, 0)
            reached = np.flatnonzero(to >= np.uint64(late))
            if len(reached):
                kept = int(np.searchsorted(-values, -values[reached[0]], side="right"))
            doubtful = len(reached) == 0 or int(above[reached[0]]) >= self._early
        if asked.top_k and asked.top_k < kept:
            kept = asked.top_k
            doubtful = asked.top_p < 1 and int(above[kept - 1]) >= self._early
        if asked.min_p > 0:
            kept = min(kept, int(np.count_nonzero(values >= row.max() + F(np.log(asked.min_p)))))
        chosen = np.argsort(order[:kept])
        self.survivors = order[:kept][chosen]
        uncertain = (above >= np.uint64(self._early)) & (values < values[0]) & doubtful
        self._uncertain = uncertain[:kept][chosen]

    def draws(self, bits: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Tokens and needs_host [P] for the survivors' random bits [P, survivors]."""
        scores = (self._row[self.survivors] - self._row.max()) * self._sharpness + gumbel32(bits)
        winners = np.argmax(scores, axis=1)
        if len(self.survivors) == 1:
            return self.survivors[winners], self._uncertain[winners]
        best_two = np.partition(scores, scores.shape[1] - 2, axis=1)[:, -2:]
        return self.survivors[winners], (best_two[:, 1] - best_two[:, 0] < BOUND) | self._uncertain[winners]


def random_words(seed: int, positions: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Philox4x32-10 bits [P, n] for positions [P] and ascending tokens [n], each block of four computed once."""
    blocks, index = np.unique(tokens // 4, return_inverse=True)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0 = np.repeat(blocks.astype(np.uint64)[None], len(positions), axis=0)
    c1 = np.repeat(positions.astype(np.uint64)[:, None], len(blocks), axis=1)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    for turn in range(10):
        k0 = np.uint64((seed + turn * 0x9E3779B9) % 2**32)
        k1 = np.uint64(((seed >> 32) + turn * 0xBB67AE85) % 2**32)
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
    words = np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)
    return words[:, index, tokens % 4]
