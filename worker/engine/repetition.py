"""Repetition: how much of a completion it has said before, at its end and while it is being written."""

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NGRAM = 6
# The tokens that a limit looks at: the latest so many, and none before there are so few.
WINDOW = 256
MIN_TOKENS = 64

_Names = npt.NDArray[np.int64]


def repeated_share(tokens: Sequence[int], size: int = NGRAM) -> float:
    """Share of n-grams that occurred before: 0 for text without repetition, near 1 for a loop."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class RepetitionLimit:
    """Says, token by token, when `repeated_share` of the latest tokens of a completion is above `limit`."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._tokens: deque[int] = deque(maxlen=NGRAM)
        self._grams: deque[tuple[int, ...]] = deque()
        self._counts: Counter[tuple[int, ...]] = Counter()

    def exceeded_by(self, token: int) -> bool:
        """Take the next token; whether the share exceeds the limit with it."""
        self._tokens.append(token)
        if len(self._tokens) == NGRAM:
            self._enter(tuple(self._tokens))
        count = len(self._grams)
        return count >= MIN_TOKENS - NGRAM + 1 and 1 - len(self._counts) / count > self._limit

    def _enter(self, gram: tuple[int, ...]) -> None:
        self._grams.append(gram)
        self._counts[gram] += 1
        if len(self._grams) > WINDOW - NGRAM + 1:
            oldest = self._grams.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]


def longest_repeat(tokens: Sequence[int]) -> int:
    """Tokens of the longest n-gram that occurs at least twice; the occurrences may overlap. 0 = all tokens differ.

    Equal n-grams get equal names, those of length 2^k from pairs of names of length 2^(k-1) (Karp, Miller, Rosenberg:
    Rapid identification of repeated patterns, STOC 1972); the longest length is then put together from powers of two.
    """
    powers = [_named(np.asarray(tokens, dtype=np.int64))]
    while _repeats(powers[-1]):
        powers.append(_joined(powers[-1], powers[-1], offset=1 << (len(powers) - 1)))
    powers.pop()
    if not powers:
        return 0
    length, names = 1 << (len(powers) - 1), powers.pop()
    while powers:
        longer = _joined(names, powers[-1], offset=length)
        if _repeats(longer):
            length, names = length + (1 << (len(powers) - 1)), longer
        powers.pop()
    return length


def _joined(first: _Names, second: _Names, offset: int) -> _Names:
    """Names of the n-grams that consist of one in `first` and, `offset` tokens on, one in `second`."""
    count = max(0, min(len(first), len(second) - offset))
    return _named(first[:count] * (len(second) + 1) + second[offset : offset + count])


def _named(keys: _Names) -> _Names:
    """Equal keys as equal numbers below their count."""
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _repeats(names: _Names) -> bool:
    return len(names) > 0 and int(names.max()) + 1 < len(names)
