"""One attempt at one request: what the generating thread, the pulse and the signal handlers share.

generating ──> finished            the engine came to an end of its own
    │
    └─ should_stop() is true, for the first of these reasons that came up:
         lease lost      the request runs elsewhere           nothing is published
         cancelled       its batch, or itself, was cancelled  the text so far is published
         deadline        it ran too long                      an error is published
         expired         the deadline of its batch passed     that it has expired is published
         hand back       the worker stops                     it goes back to the head of its queue

An exception of the engine ends the run as failed where the request is tried once more (worker/retry.py).
"""

import logging
import math
import time
from collections.abc import Callable
from enum import StrEnum

from api.identity import batch_of
from api.schemas import RequestEvent
from api.transitions import about
from worker.retry import ErrorKind

logger = logging.getLogger("cidermill.worker")

TAIL_CHARACTERS = 200


class StopReason(StrEnum):
    LEASE_LOST = "lease lost"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    EXPIRED = "expired"
    HAND_BACK = "hand back"
    FAILED = "failed"


class Run:
    """A running attempt. Fields are assigned whole, so any thread may read and write them without a lock.

    timeout_seconds: wall time, counted from now. hand_back_due: whether the worker wants to be rid of the request.
    tell_start: publishes that the generation begins; false, and nothing was published, where nobody wants it any more.
    still_ours: whether the request is still wanted of this worker, asked before an end is told. failed_before_on: the
    machine of an earlier attempt that failed. execution_key: what Redis keeps about this attempt alone.

    attempt: its number, from 1; 0 until it is counted. begun: whether the engine has had the request. told: whether
    its end is on the results stream. answered: whether a result came of it that is no error. failed_with: of a run
    that failed.
    """

    def __init__(
        self,
        request_id: str,
        timeout_seconds: float,
        hand_back_due: Callable[[], bool],
        *,
        worker: str = "",
        tell_start: Callable[[RequestEvent], bool] = lambda _: True,
        still_ours: Callable[[], bool] = lambda: True,
        failed_before_on: str | None = None,
        execution_key: str = "",
    ) -> None:
        self.request_id = request_id
        self.worker = worker
        self.tell_start = tell_start
        self.still_ours = still_ours
        self.failed_before_on = failed_before_on
        self.execution_key = execution_key
        self.failed_with: ErrorKind | None = None
        self.lease_lost = False
        self.batch_id = batch_of(request_id)
        self.timeout_seconds = timeout_seconds
        self.attempt = 0
        self.tokens = 0
        self.tail = ""
        self.begun = False
        self.told = False
        self.answered = False
        self.stopped_by: StopReason | None = None
        self._deadline = time.monotonic() + timeout_seconds
        self._expires = math.inf
        self._hand_back_due = hand_back_due
        self.renewed()
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

    def lost(self) -> None:
        """The request is another worker's by now."""
        if not self.lease_lost:
            self.lease_lost = True
            logger.warning("lease_lost", extra=about(self.request_id, self.worker, attempt=self.attempt))
        self.stop(StopReason.LEASE_LOST)

    def fail(self, kind: ErrorKind) -> None:
        """The engine raised, and the request is to be tried once more."""
        self.failed_with, self.stopped_by = kind, StopReason.FAILED

    def renewed(self) -> None:
        """The lease was extended."""
        self._renewed_at = time.monotonic(), time.time()

    @property
    def silence(self) -> float:
        """Seconds since the lease was extended, by the clock that says more: one of them stands still in sleep."""
        monotonic, wall = self._renewed_at
        return max(time.monotonic() - monotonic, time.time() - wall)

    @property
    def to_be_given_up(self) -> bool:
        """Whether nothing came of it, so that the request is to wait again."""
        return not self.told and (not self.begun or self.stopped_by in (StopReason.HAND_BACK, StopReason.FAILED))

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
