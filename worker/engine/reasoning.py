"""Reasoning: where a model thinks before it answers, told by the tokens that open and close it."""

from collections.abc import Iterable, Sequence


class Reasoning:
    """Follows a text into a reasoning and out of it, at a constant cost per token.

    A reasoning is open from its start marker on, which may stand in the prompt, until an end marker. start, end: the
    markers, None for a model without. `spent`: completion tokens within the open one; None when none is.
    """

    def __init__(self, start: int | None, end: int | None, prompt: Sequence[int]) -> None:
        self._start, self._end = start, end
        markers = () if start is None else (token for token in reversed(prompt) if token in (start, end))
        self.spent: int | None = 0 if next(iter(markers), end) != end else None

    def after(self, tokens: Iterable[int]) -> int | None:
        """What `spent` becomes with `tokens`."""
        spent = self.spent
        for token in tokens:
            if token == self._end:
                spent = None
            elif token == self._start:
                spent = 0
            elif spent is not None:
                spent += 1
        return spent

    def push(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the completion."""
        self.spent = self.after(tokens)
