"""Philox4x32-10: counter-based random bits, the same on every backend, and the Gumbel noise made of them.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3. The noise of a draw is
addressed, not consumed, so a draw does not depend on which tree, drafter, budget or machine asks for it, and a kernel
computes just the words that it needs. For token t (below 2^34) at absolute position p (below 2^32) under seed s (64
bits), all unsigned:

    counter  c = (t div 4, p, 0, 0), key k = (s mod 2^32, s div 2^32)
    round    c = (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), with hi and lo the halves of the
             64-bit product, M0 = 0xD2511F53, M1 = 0xCD9E8D57; then k = (k0 + 0x9E3779B9, k1 + 0xBB67AE85) mod 2^32
    bits     word c[t mod 4] after ten rounds
    uniform  u = (bits + 1/2) / 2^32, in float64, where it is exact: 0 < u < 1
    noise    g = -log(-log1p(-u)), in float64, standard Gumbel
    score    (log p[t] - max log p) / T + g, in float64 of float32 log-probabilities; the largest wins, of equal ones
             the lowest t

The bits agree everywhere to the last one. Two libraries' logarithms may differ in a float64's last bit, which can
matter to scores that agree in their first 14 digits. Whoever scores in float32 has to settle near ties in float64.
"""

import math
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_ROUNDS = 10

Words = npt.NDArray[np.uint64]
Word = TypeVar("Word", int, Words)
"""One word, or an array [n] of words, each of 32 bits."""


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Four 32-bit words for one counter of four words, or, as arrays [n] in uint64, for n counters."""
    words: Any = counter  # NumPy's types take a Python integer for a signed one
    c0, c1, c2, c3 = words
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0 = (k0 + _WEYL[0]) & _LOW
        k1 = (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def random_bits(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """32 random bits for each of `tokens` [n] at an absolute position, under a 64-bit seed."""
    assert 0 <= seed < 2**64
    assert 0 <= position < 2**32
    blocks = (tokens // 4).astype(np.uint64)
    zero = np.zeros_like(blocks)
    words = philox4x32((blocks, np.full_like(blocks, position), zero, zero), (seed & _LOW, seed >> 32))
    return np.choose(tokens % 4, words).astype(np.uint32)


def gumbel_noise(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each of `tokens` [n].

    The winners of a draw have small u, where floating point resolves best, so the upper tail reaches 22.9 without the
    steps of uniforms near one.
    """
    uniform = (random_bits(seed, position, tokens).astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log1p(-uniform))


def token_noise(seed: int, position: int, token: int) -> float:
    """`gumbel_noise` of a single token, without what it takes to set up arrays."""
    words = philox4x32((token // 4, position, 0, 0), (seed & _LOW, seed >> 32))
    return -math.log(-math.log1p(-(words[token % 4] + 0.5) * 2.0**-32))
