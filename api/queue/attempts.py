"""How often a request was started, and which workers it has lost. Kept beside RQ's own count, which has no names."""

from typing import TYPE_CHECKING, cast

from redis import Redis
from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from redis.client import Pipeline

KEEP_SECONDS = 7 * 24 * 3600
MOST_NAMES = 100
LONGEST_NUMBER = 9
"""Digits."""

BEGIN = f"""
local function number(text) return #text <= {LONGEST_NUMBER} and text:match('^%d+$') and tonumber(text) end
local execution = redis.call('TYPE', KEYS[2]).ok == 'hash'
local begun = execution and number(redis.call('HGET', KEYS[2], 'attempt') or '')
if begun then return begun end
local text = redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GETRANGE', KEYS[1], 0, {LONGEST_NUMBER})
local attempt = (text and number(text) or 0) + 1
redis.call('SET', KEYS[1], attempt, 'EX', ARGV[1])
if execution then redis.call('HSET', KEYS[2], 'attempt', attempt) end
return attempt
"""


def attempts_key(request_id: str) -> str:
    return f"cidermill:attempts:{request_id}"


def lost_key(request_id: str) -> str:
    return f"cidermill:lost:{request_id}"


def begin(pipeline: "Pipeline", request_id: str, execution_key: str) -> None:
    """Count a start: the pipeline's answer is the number of this attempt, from 1.

    Sent again for the same execution, as after an answer that was lost, it is counted once. What somebody else wrote
    in place of the count is replaced.
    """
    pipeline.eval(BEGIN, 2, attempts_key(request_id), execution_key, str(KEEP_SECONDS))


def latest(connection: Redis, request_id: str) -> int:
    """The number of the latest attempt; 1 where nothing, or nothing of the kind, is counted."""
    try:
        counted = cast(bytes, connection.getrange(attempts_key(request_id), 0, LONGEST_NUMBER - 1))
    except ResponseError:
        return 1  # somebody else wrote the key
    return max(1, int(counted)) if counted.isdigit() else 1


def take_back(pipeline: "Pipeline", request_id: str) -> None:
    """Forget a start: its worker handed the request back."""
    pipeline.decr(attempts_key(request_id))


def note_lost(connection: Redis, request_id: str, worker: str) -> None:
    """Remember that `worker` died while it ran the request."""
    connection.rpush(lost_key(request_id), worker)
    connection.ltrim(lost_key(request_id), -MOST_NAMES, -1)
    connection.expire(lost_key(request_id), KEEP_SECONDS)


def lost_workers(connection: Redis, request_id: str) -> tuple[str, ...]:
    """The workers that died on the request, first to last."""
    try:
        names = cast(list[bytes], connection.lrange(lost_key(request_id), 0, -1))
    except ResponseError:
        return ()  # somebody else wrote the key
    return tuple(name.decode("utf-8", "replace") for name in names)
