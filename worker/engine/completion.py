"""Completion: the tokens of an answer as they arrive, its text, and where it ends.

Tokens are pushed one by one, however many a pass emitted, so the end of a text does not depend on the size of a pass.
An end token is neither text nor a completion token. A stop string cuts the text before its match, and the tokens whose
text lies wholly past the cut are dropped: text, ids, logprobs and usage agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from api.schemas import FinishReason
from worker.engine.detokenizer import Decode, Detokenizer
from worker.engine.interruption import Interrupt
from worker.engine.repetition import RepetitionLimit

Origin = Literal["drawn", "accepted", "forced"]
"""How a token came about: drawn from the target, drafted and confirmed by the draw, or drafted and taken against it."""


@dataclass(frozen=True)
class EndRules:
    """When a text ends. The cap is looked at last: a stop within the last allowed token is a stop.

    max_repetition: share of repeated n-grams among the latest tokens above which the text ends; None = never.
    """

    max_tokens: int
    end_tokens: frozenset[int] = frozenset()
    stop_tokens: frozenset[int] = frozenset()
    stops: Sequence[str] = ()
    max_repetition: float | None = None

    def ends(self, token: int) -> bool:
        """Whether `token` ends the text by itself."""
        return token in self.end_tokens or token in self.stop_tokens


@dataclass
class Completion:
    """The answer so far. `finish_reason` is None while it goes on. `origins`: of each of `tokens`."""

    rules: EndRules
    decode: Decode
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.decode)
        limit = self.rules.max_repetition
        self._repetition = None if limit is None else RepetitionLimit(limit)
        self._ends: list[int] = []
        self._reported = 0

    def push(self, token: int, origin: Origin = "drawn") -> bool:
        """Take the next token; True when the text has ended with it."""
        assert self.finish_reason is None
        if self.rules.ends(token):
            self._finish("stop", token if token in self.rules.stop_tokens else None)
            return True
        self.tokens.append(token)
        self.origins.append(origin)
        self._append(self._detokenizer.push(token))
        repeats = self._repetition is not None and self._repetition.exceeded_by(token)
        if not self.finished and repeats:
            self._finish("repetition", None)
        elif not self.finished and len(self.tokens) >= self.rules.max_tokens:
            self._finish("length", None)
        return self.finished

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def interrupt(self, reason: Interrupt) -> None:
        """End the text where it is."""
        self._finish(reason, None)

    def new_text(self) -> str:
        """Text that is certain and was not reported yet: what may still become a stop string is held back."""
        certain = len(self.text)
        if not self.finished:
            certain -= _possible_stop(self.text, self.rules.stops)
        piece = self.text[self._reported : certain]
        self._reported = max(self._reported, certain)
        return piece

    def _append(self, piece: str) -> None:
        start = len(self.text)
        self.text += piece
        self._ends.append(len(self.text))
        match = _first_stop(self.text, start, self.rules.stops) if piece else None
        if match:
            position, stop = match
            self._cut(position)
            self.finish_reason, self.matched_stop = "stop", stop

    def _cut(self, position: int) -> None:
        self.text = self.text[:position]
        kept = next((number for number, end in enumerate([0, *self._ends]) if end >= position), len(self.tokens))
        del self.tokens[kept:], self.origins[kept:], self._ends[kept:]

    def _finish(self, reason: FinishReason, matched: int | None) -> None:
        self.finish_reason, self.matched_stop = reason, matched
        piece = self._detokenizer.flush()
        if piece and self.tokens:
            self._append(piece)
            # The flushed piece belongs to the last token, which has its end already.
            if len(self._ends) > len(self.tokens):
                self._ends = [*self._ends[: len(self.tokens) - 1], len(self.text)]


def _first_stop(text: str, start: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """The earliest match that ends after `start`; of two at one place the longer."""
    matches = []
    for stop in stops:
        position = text.find(stop, max(0, start - len(stop) + 1))
        if position >= 0:
            matches.append((position, -len(stop), stop))
    if not matches:
        return None
    position, _, stop = min(matches)
    return position, stop


def _possible_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
