"""How far each batch has been put into this Redis, and whose turn it is to put more of it there (api/window.py)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from redis import Redis
from redis.exceptions import LockNotOwnedError

KEEP_SECONDS = 30 * 24 * 3600
"""Since anybody last asked: the recorder of an open batch does so every second."""
TURN_SECONDS = 30.0
"""After which the turn of a process that died is over. A turn takes some tenths of a second."""


def mark_key(batch_id: str) -> str:
    return f"cidermill:placed:{batch_id}"


def start(connection: Redis, batch_id: str) -> int:
    """The mark of the batch, which is 0 where there was none."""
    connection.set(mark_key(batch_id), 0, nx=True, ex=KEEP_SECONDS)
    return read(connection, [batch_id]).get(batch_id, 0)


def read(connection: Redis, batch_ids: Sequence[str]) -> dict[str, int]:
    """The marks of those batches that have one, in the given order."""
    with connection.pipeline(transaction=False) as pipeline:
        for batch_id in batch_ids:
            pipeline.getex(mark_key(batch_id), ex=KEEP_SECONDS)
        found = cast(list[bytes | None], pipeline.execute())
    return {batch_id: int(mark) for batch_id, mark in zip(batch_ids, found, strict=True) if mark is not None}


def move(connection: Redis, batch_id: str, mark: int) -> None:
    connection.set(mark_key(batch_id), mark, ex=KEEP_SECONDS)


@contextmanager
def turn(connection: Redis, queue: str, *, wait: bool) -> Iterator[bool]:
    """The right to put requests into the queue; whether it was had. Two at it would queue the same request twice.

    Raises redis.exceptions.LockError after waiting for TURN_SECONDS in vain.
    """
    lock = connection.lock(f"cidermill:topping-up:{queue}", timeout=TURN_SECONDS)
    ours = lock.acquire(blocking=wait)
    try:
        yield ours
    finally:
        if ours:
            with suppress(LockNotOwnedError):  # it took longer than a turn; what was put twice is answered once
                lock.release()
