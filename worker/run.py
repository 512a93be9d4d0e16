"""One attempt at one request: what the generating thread, the pulse and the signal handlers share.

generating ──> finished            the engine came to an end of its own
    │
    └─ should_stop() is true, for the first of these reasons that came up:
         lease lost      the request runs elsewhere           nothing is published
         cancelled       its batch, or itself, was cancelled  the text so far is published
         deadline        it ran too long                      an error is published
         expired         the deadline of its batch passed     that it has expired is published
         hand back       the worker stops                     it goes back to the head of its queue
"""

import math
import time
from collections.abc import Callable
from enum import StrEnum

from api.identity import batch_of

TAIL_CHARACTERS = 200


class StopReason(StrEnum):
    LEASE_LOST = "lease lost"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    EXPIRED = "expired"
    HAND_BACK = "hand back"


class Run:
    """A running attempt. Fields are assigned whole, so any thread may read and write them without a lock.

    timeout_seconds: wall time, counted from now. hand_back_due: whether the worker wants to be rid of the request.
    answered: whether a result came of it that is no error.
    """

    def __init__(self, request_id: str, timeout_seconds: float, hand_back_due: Callable[[], bool]) -> None:
        self.request_id = request_id
        self.batch_id = batch_of(request_id)
        self.timeout_seconds = timeout_seconds
        self.attempt = 1
        self.tokens = 0
        self.tail = ""
        self.answered = False
        self.stopped_by: StopReason | None = None
        self._deadline = time.monotonic() + timeout_seconds
        self._expires = math.inf
        self._hand_back_due = hand_back_due
        self._first: tuple[float, int] | None = None

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second so far, after those that came first."""
        if self._first is None or self.tokens == self._first[1]:
            return None
        return (self.tokens - self._first[1]) / max(time.monotonic() - self._first[0], 1e-9)

    def stop(self, reason: StopReason) -> None:
        """Ask the engine to stop; the first reason stays."""
        if self.stopped_by is None:
            self.stopped_by = reason

    def expire_in(self, seconds: float) -> None:
        """Stop when its batch expires, in so many seconds."""
        self._expires = time.monotonic() + seconds

    def should_stop(self) -> bool:
        """For the engine, once a pass."""
        if self.stopped_by is None:
            if time.monotonic() > self._deadline:
                self.stop(StopReason.DEADLINE)
            elif time.monotonic() > self._expires:
                self.stop(StopReason.EXPIRED)
            elif self._hand_back_due():
                self.stop(StopReason.HAND_BACK)
        return self.stopped_by is not None

    def on_tokens(self, text: str, tokens: int) -> None:
        """For the engine: new text, and the number of completion tokens so far."""
        if self._first is None:
            self._first = time.monotonic(), tokens
        self.tokens = tokens
        self.tail = (self.tail + text)[-TAIL_CHARACTERS:]
