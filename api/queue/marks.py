"""How far each batch has been put into this Redis, and whose turn it is to put more of it there (api/window.py).

A mark moves up only for whoever has seen it as it is, and never looks the same again after it has changed. So who put
requests into a server that has lost them since, or that was made anew, does not mark them as put.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

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
MOST_DIGITS = 15
"""Of a mark."""


_INDEX = f"""
local function index(text)
  local digits = ((text or '') .. ' '):match('^(%d+) ')
  return digits and #digits <= {MOST_DIGITS} and digits or '0'
end
"""
START = f"""{_INDEX}
redis.call('SET', KEYS[1], index(redis.call('GET', KEYS[1])) .. ' ' .. ARGV[1], 'EX', ARGV[2])
"""
RAISE = """
if redis.call('GET', KEYS[1]) == ARGV[3] then redis.call('SET', KEYS[1], ARGV[4] .. ' ' .. ARGV[1], 'EX', ARGV[2]) end
"""
LOWER = f"""{_INDEX}
local text = redis.call('GET', KEYS[1])
if text and tonumber(index(text)) > tonumber(ARGV[3]) then
  redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. ARGV[1], 'EX', ARGV[2])
end
"""
"""Each writes the index, a space, and something new. Indices have fewer digits than Lua's numbers lose."""


class Mark(NamedTuple):
    """below: requests with a lower index are in this Redis, or ended. text: what stands there."""

    below: int
    text: bytes


def mark_key(batch_id: str) -> str:
    return f"cidermill:placed:{batch_id}"


def turn_key(queue: str) -> str:
    return f"cidermill:topping-up:{queue}"


def start(connection: Redis, batch_id: str) -> int:
    """The mark of the batch, which is 0 where there was none. Whoever has seen an earlier one moves it no more."""
    _write(connection, START, batch_id)
    found = read(connection, [batch_id]).get(batch_id)
    return 0 if found is None else found.below


def read(connection: Redis, batch_ids: Sequence[str]) -> dict[str, Mark]:
    """The marks of those batches that have one, in the given order; what is no number is 0."""
    with connection.pipeline(transaction=False) as pipeline:
        for batch_id in batch_ids:
            pipeline.getex(mark_key(batch_id), ex=KEEP_SECONDS)
        found = cast(list[bytes | None], pipeline.execute())
    return {one: Mark(_index(text), text) for one, text in zip(batch_ids, found, strict=True) if text is not None}


def move_up(connection: Redis, batch_id: str, seen: Mark, index: int) -> None:
    """Nothing where the mark is another one by now: what was put after it was seen comes again."""
    _write(connection, RAISE, batch_id, seen.text, str(index))


def move_down(connection: Redis, batch_id: str, index: int) -> None:
    """Nothing where the mark is that low, or gone."""
    _write(connection, LOWER, batch_id, str(index))


def _write(connection: Redis, script: str, batch_id: str, *arguments: bytes | str) -> None:
    with Step(connection) as pipeline:  # also where the server is full: so a recorder knows what is missing there
        pipeline.eval(script, 1, mark_key(batch_id), uuid.uuid4().hex, str(KEEP_SECONDS), *cast(Any, arguments))
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


def _index(text: bytes) -> int:
    digits = text.partition(b" ")[0]
    return int(digits) if digits.isdigit() and len(digits) <= MOST_DIGITS else 0
