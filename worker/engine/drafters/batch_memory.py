"""Batch memory: what the earlier requests of a batch were answered, to guess from.

The answers to one instruction over thousands of rows resemble each other more than they do their prompts. An answer
enters the memory of its batch when it has ended, and leaves it when newer ones need the room.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence

from worker.engine.drafters.sorted_places import DEPTH, NONE, Occurrence, SortedPlaces

MAX_TOKENS = 2**17
"""Of one batch, the last DEPTH tokens before each answer included: a megabyte, and some thousand short answers."""
MAX_BATCHES = 4


class Outputs:
    """The latest answers of one batch, first in, first out."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        assert max_tokens > DEPTH + 1
        self._max_tokens = max_tokens
        self._places = SortedPlaces()
        self._sizes: deque[int] = deque()

    def __len__(self) -> int:
        """Tokens in memory, those of contexts included."""
        return len(self._places.tokens)

    def add(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Remember an answer, and how its prompt ended: so the first tokens of the next answer can be guessed too.

        Of an answer that is longer than the whole memory its end is kept.
        """
        cut = max(0, len(answer) - (self._max_tokens - DEPTH - 1))
        self._places.begin([*prompt[-DEPTH:], *answer[:cut]])
        for token in [*answer[cut:], NONE]:
            self._places.append(token)
        self._sizes.append(DEPTH + len(answer) - cut + 1)
        self._forget_oldest()

    def nearest(self, context: array[int], count: int) -> list[Occurrence]:
        """As `SortedPlaces.nearest`. The token after an answer's last one is NONE."""
        return self._places.nearest(context, count)

    def _forget_oldest(self) -> None:
        start = 0
        while len(self) - start > self._max_tokens:
            start += self._sizes.popleft()
        if start:
            self._places.keep(start, len(self))


class BatchMemory:
    """Answers by batch, of the batches that were asked for last."""

    def __init__(self, max_tokens: int = MAX_TOKENS, max_batches: int = MAX_BATCHES) -> None:
        self._max_tokens, self._max_batches = max_tokens, max_batches
        self._batches: OrderedDict[str, Outputs] = OrderedDict()

    def of(self, batch: str) -> Outputs:
        """The answers of `batch` so far."""
        if batch not in self._batches:
            self._batches[batch] = Outputs(self._max_tokens)
        self._batches.move_to_end(batch)
        if len(self._batches) > self._max_batches:
            self._batches.popitem(last=False)
        return self._batches[batch]

    def clear(self) -> None:
        self._batches.clear()
