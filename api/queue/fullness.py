"""How much may be put into a queue: it holds QUEUE_BYTES at most, and nothing is put where Redis has little room.

The last fifth of the memory limit belongs to the workers, for what they book and answer. A server without a
limit is only as full as its queues.
"""

import logging
from typing import cast

from redis import Redis

logger = logging.getLogger("cidermill.queue")

FULL = 0.8
"""The share of the memory limit from which on no requests are put in."""
QUEUE_BYTES = 64 * 2**20
ENTRY_BYTES = 2048
"""What Redis needs for an entry beside its data; 2.3 to 2.9 kB were measured with data of 1.3 kB."""
SMALLEST_PART = 10
"""A queue that holds more than nothing is topped up when there is room for this part of QUEUE_BYTES."""
SAMPLE = 500
"""Entries of a queue that are looked at: more would block the server for milliseconds, 10 for 9,000 entries."""

_WAITING_BYTES = f"""
local length = redis.call('LLEN', KEYS[1])
local looked, total = math.min(length, {SAMPLE}), 0
local stride = length / math.max(looked, 1)
for number = 0, looked - 1 do
  local place = math.floor((number + (looked < length and math.random() or 0)) * stride)
  local id = redis.call('LRANGE', KEYS[1], place, place)[1]
  local size = redis.pcall('HSTRLEN', 'rq:job:' .. id, 'data')
  if type(size) == 'number' then total = total + size + {ENTRY_BYTES} end
end
return math.floor(total * stride)
"""
"""Of a long queue, one entry out of each part of equal length, at random: sizes that recur may have any period."""


class Fullness:
    """Room in one server, and word of it when it is nearly full: once, until it is not any more."""

    def __init__(self, connection: Redis) -> None:
        self._connection = connection
        self._nearly_full = False

    def room(self, queue_key: str) -> int:
        """Bytes that may be put into the queue now, entries with ENTRY_BYTES each; 0: nothing.

        To be asked when there is something to put: a server that takes nothing is a warning then.
        """
        waiting = cast(int, self._connection.eval(_WAITING_BYTES, 1, queue_key))
        memory = self._connection.info("memory")
        used, limit = int(memory["used_memory"]), int(memory.get("maxmemory", 0))
        left = QUEUE_BYTES - waiting
        if limit:
            left = min(left, int(FULL * limit) - used)
        self._tell(used, limit)
        return max(left, 0) if left >= QUEUE_BYTES // SMALLEST_PART or not waiting else 0

    def _tell(self, used: int, limit: int) -> None:
        nearly_full = bool(limit) and used >= int(FULL * limit)
        if nearly_full and not self._nearly_full:
            logger.warning(
                "Redis is nearly full: %d of %d bytes are used, and no requests are put there. The recorder adds them "
                "when less than %d %% is used; let workers and the recorder go on, or raise maxmemory",
                *(used, limit, round(100 * FULL)),
            )
        elif self._nearly_full and not nearly_full:
            logger.info("Redis has room for requests again: %d bytes are used", used)
        self._nearly_full = nearly_full
