"""Sorted places: where the same tokens came before, found by bisection.

A place is the number of tokens before it, and the order of places is that of the tokens before them, the nearest token
first: a suffix array of the text read backwards. Places that the same tokens precede are neighbours, and those that
precede the end of a given context are found around the spot where that context belongs. In SuffixDecoding
(arXiv:2411.04975) they are the suffixes counted by one node of a tree; here a node is a stretch of the order and its
count the length of that, so forgetting a text lowers every count and leaves no node behind. New tokens go to the end of
a text and change nothing of what came before the older ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

DEPTH = 24
"""Tokens before a place that its order goes by: the longest match that is told apart."""
NONE = -1
"""Stands where no token is: before a text whose context is shorter than DEPTH, and after its end."""


class Occurrence(NamedTuple):
    """Where the context's last `match` tokens stand in `tokens`: what followed them begins at `start`."""

    tokens: array[int]
    start: int
    match: int


class SortedPlaces:
    """Texts, one after the other, and the order of their places: 8 bytes a token, 4 a token of context."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self._places = array("i")

    def begin(self, context: Sequence[int] = ()) -> None:
        """Begin a text after `context`: its last DEPTH tokens precede the first places, and are none themselves."""
        last = list(context[-DEPTH:])
        self.tokens.extend([NONE] * (DEPTH - len(last)) + last)

    def append(self, token: int) -> None:
        """The next token of the text, and the place before it. O(log n) comparisons, and n places to move."""
        place = len(self.tokens)
        self._places.insert(self._rank(self._before(place)), place)
        self.tokens.append(token)

    def keep(self, start: int, end: int) -> None:
        """Forget all tokens but those of [start, end), which become the first ones. A text is cut at its end only."""
        places = np.frombuffer(self._places, dtype=np.int32)
        kept = places[(places >= start) & (places < end)] - np.int32(start)
        self._places = array("i", kept.tobytes())
        del self.tokens[end:], self.tokens[:start]

    def nearest(self, context: array[int], count: int) -> list[Occurrence]:
        """The `count` places that match `context`, at most DEPTH tokens, best: longest match first, then the latest."""
        rank = self._rank(context[::-1])
        below = range(rank - 1, max(rank - count, 0) - 1, -1)
        above = range(rank, min(rank + count, len(self._places)))
        found = [*self._matching(below, context), *self._matching(above, context)]
        found.sort(key=lambda one: (one.match, one.start), reverse=True)
        return found[:count]

    def _matching(self, ranks: range, context: array[int]) -> Iterator[Occurrence]:
        """Occurrences in the order of `ranks`, which lead away from where `context` belongs: matches only shorten."""
        match = len(context)
        for rank in ranks:
            start = self._places[rank]
            while match and self.tokens[start - match : start] != context[-match:]:
                match -= 1
            if not match:
                return
            yield Occurrence(self.tokens, start, match)

    def _rank(self, before: array[int]) -> int:
        return bisect_right(self._places, before, key=self._before)

    def _before(self, place: int) -> array[int]:
        return self.tokens[place - DEPTH : place][::-1]
