"""Duties that one process does in turn, again and again. One that fails waits, and stops none of the others."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from api.errors import LedgerError, QueueError, StorageError
from api.pacing import spread

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
PASSING_ERRORS = (RedisError, QueueError, LedgerError, StorageError)
"""What an operator can mend while a duty waits: Redis is away, the disk is full, the ledger is locked."""


class Duty:
    """name: in the log. perform: does some of it; whether there is more to do at once. seconds: else until the next."""

    def __init__(self, name: str, perform: Callable[[], object], seconds: float) -> None:
        self.name = name
        self.due_at = 0.0
        self._perform, self._seconds, self._pause = perform, seconds, 0.0

    def take_turn(self, logger: logging.Logger) -> Exception | None:
        """Do some of it, and set when it is due again; returns the passing error for which it waits."""
        try:
            more = self._perform()
        except PASSING_ERRORS as error:
            self._pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause or FIRST_PAUSE_SECONDS)
            logger.error("%s pauses, nothing is lost; next try in about %g s: %s", self.name, self._pause, error)
            self.due_at = time.monotonic() + spread(self._pause)
            return error
        if self._pause:
            logger.warning("%s goes on", self.name)
        self._pause = 0.0
        self.due_at = time.monotonic() + (0.0 if more else spread(self._seconds))
        return None


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Do each, also after Redis has refused something in one of them; raises the first such ResponseError then."""
    refused: ResponseError | None = None
    for step in steps:
        try:
            step()
        except ResponseError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def perform(
    duties: Sequence[Duty],
    stop: threading.Event,
    logger: logging.Logger,
    on_error: Callable[[Exception], None] = lambda _: None,
) -> None:
    """Each duty in turn when it is due, until `stop`. on_error: told what a duty waits for.

    Where Redis is away, all of them wait for it together.
    """
    while not stop.is_set():
        for duty in duties:
            if stop.is_set() or duty.due_at > time.monotonic():
                continue
            error = duty.take_turn(logger)
            if error is not None:
                on_error(error)
            if isinstance(error, ConnectionLost | NoAnswer):
                for other in duties:
                    other.due_at = max(other.due_at, duty.due_at)
                break
        stop.wait(max(0.0, min(duty.due_at for duty in duties) - time.monotonic()))
