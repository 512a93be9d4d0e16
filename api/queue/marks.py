"""How far each batch has been put into this Redis, and whose turn it is to put more of it there (api/window.py)."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from redis import Redis
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock

from api.queue.steps import Step

logger = logging.getLogger("cidermill.queue")

KEEP_SECONDS = 30 * 24 * 3600
"""Since anybody last asked: the recorder of an open batch does so every second."""
TURN_SECONDS = 30.0
"""After which the turn of a process that died is over. A turn takes some tenths of a second."""
WAIT_SECONDS = 30.0
"""For a turn."""
MOST_DIGITS = 18
"""Of a mark; SQLite takes such a number."""


def mark_key(batch_id: str) -> str:
    return f"cidermill:placed:{batch_id}"


def turn_key(queue: str) -> str:
    return f"cidermill:topping-up:{queue}"


def start(connection: Redis, batch_id: str) -> int:
    """The mark of the batch, which is 0 where there was none."""
    with Step(connection) as pipeline:  # also where the server is full: so a recorder knows of the batch
        pipeline.set(mark_key(batch_id), 0, nx=True, ex=KEEP_SECONDS)
        pipeline.execute()
    return read(connection, [batch_id]).get(batch_id, 0)


def read(connection: Redis, batch_ids: Sequence[str]) -> dict[str, int]:
    """The marks of those batches that have one, in the given order; what is no number is 0."""
    with connection.pipeline(transaction=False) as pipeline:
        for batch_id in batch_ids:
            pipeline.getex(mark_key(batch_id), ex=KEEP_SECONDS)
        found = cast(list[bytes | None], pipeline.execute())
    return {batch_id: _number(mark) for batch_id, mark in zip(batch_ids, found, strict=True) if mark is not None}


def move(connection: Redis, batch_id: str, mark: int) -> None:
    """Nothing where there is no mark: the server has forgotten all of the batch since it was read."""
    with Step(connection) as pipeline:  # back also where the server is full: so what is missing there is put in later
        pipeline.set(mark_key(batch_id), mark, xx=True, ex=KEEP_SECONDS)
        pipeline.execute()


class _Turn(Lock):
    """Had also where the server is full: whoever has it finds out how full it is, and what is missing there."""

    def do_acquire(self, token: str) -> bool:
        with Step(self.redis) as pipeline:
            pipeline.set(self.name, token, nx=True, px=int(1000 * TURN_SECONDS))
            return bool(pipeline.execute()[0])


@contextmanager
def turn(connection: Redis, queue: str, *, wait: bool) -> Iterator[bool]:
    """The right to put requests into the queue; whether it was had. Two at it would queue the same request twice.

    Raises redis.exceptions.LockError after waiting for WAIT_SECONDS in vain.
    """
    lock = _Turn(connection, turn_key(queue), timeout=TURN_SECONDS)
    ours = lock.acquire(blocking=False) or _acquire_later(connection, lock, queue, wait)
    try:
        yield ours
    finally:
        if ours:
            with suppress(LockNotOwnedError):  # it took longer than a turn; what was put twice is answered once
                lock.release()


def _acquire_later(connection: Redis, lock: Lock, queue: str, wait: bool) -> bool:
    """Whether the turn was had once the one that is under way had ended, or proved to be nobody's."""
    key = turn_key(queue)
    left_ms = connection.pttl(key)
    if left_ms == -1 or left_ms > 1000 * TURN_SECONDS:
        logger.error("key %s would have stayed for longer than a turn: forged, or of another program; deleted", key)
        connection.delete(key)
    if not wait:
        return False
    if lock.acquire(blocking=True, blocking_timeout=WAIT_SECONDS):
        return True
    raise LockError(f"others have put requests into queue {queue} for {WAIT_SECONDS:g} s; try again")


def _number(mark: bytes) -> int:
    return int(mark) if mark.isdigit() and len(mark) <= MOST_DIGITS else 0
