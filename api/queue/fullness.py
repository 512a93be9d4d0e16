"""How much may be put into a queue: it holds QUEUE_BYTES at most, and nothing is put where Redis has little room.

The last fifth of the memory limit belongs to the workers, for what they book and answer. A server without a
limit is only as full as its queues.
"""

from typing import cast

from redis import Redis

FULL = 0.8
"""The share of the memory limit from which on no requests are put in."""
QUEUE_BYTES = 64 * 2**20
ENTRY_BYTES = 2048
"""What Redis needs for an entry beside its data; 2.3 to 2.9 kB were measured with data of 1.3 kB."""
SMALLEST_PART = 10
"""A queue that holds more than nothing is topped up when there is room for this part of QUEUE_BYTES."""

_WAITING_BYTES = f"""
local total = 0
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local size = redis.pcall('HSTRLEN', 'rq:job:' .. id, 'data')
  if type(size) == 'number' then total = total + size + {ENTRY_BYTES} end
end
return total
"""


def room(connection: Redis, queue_key: str) -> int:
    """Bytes that may be put into the queue now, entries with ENTRY_BYTES each; 0: nothing."""
    waiting = cast(int, connection.eval(_WAITING_BYTES, 1, queue_key))
    memory = connection.info("memory")
    left = QUEUE_BYTES - waiting
    if memory.get("maxmemory"):
        left = min(left, int(FULL * memory["maxmemory"]) - memory["used_memory"])
    return max(left, 0) if left >= QUEUE_BYTES // SMALLEST_PART or not waiting else 0
