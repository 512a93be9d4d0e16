"""What Redis holds of a request, spread over a hash, lists, registries and counters; and how all of it goes."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from redis import Redis
from redis.exceptions import ResponseError
from rq.job import Job, JobStatus
from rq.results import Result

from api.queue import attempts
from api.queue.quarantine import QUARANTINE_KEY
from api.queue.safe_queue import SafeQueue
from api.queue.steps import NOTHING_KEY, Step

CHUNK = 1000
"""Requests in one transaction: larger ones block the server for everybody."""
QUEUES_KEY = SafeQueue.redis_queues_keys

REMOVE = """
local kept = {}
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if redis.call('SISMEMBER', KEYS[2], id) == 0 then kept[#kept + 1] = id end
end
redis.call('DEL', KEYS[1])
for first = 1, #kept, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(kept, first, math.min(first + 999, #kept)))
end
"""
"""One pass over the list, however many ids leave it: LREM of each would be quadratic."""

ENTERED = JobStatus.DEFERRED
"""The status of an entry that is in no list yet."""
ENTERED_SECONDS = 3600
"""How long such an entry stays whose writer died before he released it."""
LEAVING_SECONDS = 60
_JOB = Job.redis_job_namespace_prefix
_PREFIXES = (
    _JOB,
    Result.get_key(""),  # type: ignore[no-untyped-call]
    "rq:executions:",
    attempts.attempts_key(""),
    attempts.lost_key(""),
)
"""Of the keys that Redis has of one request beside lists and leases."""

_READ = """
local function read(key)
  if redis.call('TYPE', key).ok ~= 'hash' then return end
  local fields = redis.call('HMGET', key, 'status', 'enqueued_at')
  return fields[1], fields[2]
end
"""
ENTER = f"""{_READ}
redis.call('SADD', KEYS[1], KEYS[2]) -- first: a full server refuses it
local entered, place = {{}}, 3
while ARGV[place] do
  local id, last = ARGV[place], place + 3 + tonumber(ARGV[place + 3])
  local status, at = read('{_JOB}' .. id)
  if (status or '') == ARGV[place + 1] and (at or '') == ARGV[place + 2] then
    for _, prefix in ipairs({{'{"', '".join(_PREFIXES)}'}}) do redis.call('DEL', prefix .. id) end
    redis.call('HDEL', '{QUARANTINE_KEY}', id)
    redis.call('ZREM', ARGV[1], id)
    redis.call('HSET', '{_JOB}' .. id, unpack(ARGV, place + 4, last))
    redis.call('EXPIRE', '{_JOB}' .. id, ARGV[2])
    entered[#entered + 1] = id
  end
  place = last + 1
end
return entered
"""
"""Arguments: of each request the id, its entry's status and time as they were seen, the number of words of its new
entry, and these. A finished or failed one has an expiry, which would take the new one with it, and counters."""
RELEASE = f"""{_READ}
redis.call('DEL', '{NOTHING_KEY}') -- a full server lets on what frees it in the end
local waiting, gone = 0, {{}}
for place = 2, #ARGV do
  local key = '{_JOB}' .. ARGV[place]
  local status, at = read(key)
  if status == '{ENTERED.value}' and at == ARGV[1] then
    redis.call('RPUSH', KEYS[1], ARGV[place]) -- first: a key of another type fails here
    redis.call('HSET', key, 'status', '{JobStatus.QUEUED.value}')
    redis.call('PERSIST', key)
    waiting = waiting + 1
  elseif not status or status == '{ENTERED.value}' then
    gone[#gone + 1] = ARGV[place]
  elseif status ~= '{JobStatus.FINISHED.value}' then
    waiting = waiting + 1
  end
end
return {{waiting, gone}}
"""

T = TypeVar("T")


class Entry(NamedTuple):
    """status and queue: as the entry says, None without one. damaged: it is quarantined.

    version: the status and the time at which it was entered, as they stand there; empty without one.
    """

    status: str | None
    queue: str | None
    damaged: bool
    version: tuple[bytes, bytes]


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of at most CHUNK."""
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def queue_names(connection: Redis) -> list[str]:
    """Of all queues into which anything was ever put."""
    keys = cast(set[bytes], connection.smembers(QUEUES_KEY))
    prefix = SafeQueue.redis_queue_namespace_prefix
    return [key.decode("utf-8", "replace").removeprefix(prefix) for key in keys]


def look_up(connection: Redis, request_ids: Iterable[str]) -> Iterator[tuple[str, Entry]]:
    """The entry of each id."""
    for chunk in chunks(request_ids):
        with connection.pipeline(transaction=False) as pipeline:
            for request_id in chunk:
                pipeline.hmget(Job.key_for(request_id), ["status", "origin", "enqueued_at"])
                pipeline.hexists(QUARANTINE_KEY, request_id)
            # A key of another type is an error of that command alone.
            answers = pipeline.execute(raise_on_error=False)
        for request_id, fields, damaged in zip(chunk, answers[::2], answers[1::2], strict=True):
            status, queue, at = (None,) * 3 if isinstance(fields, Exception) else fields
            yield request_id, Entry(_text(status), _text(queue), bool(damaged), (status or b"", at or b""))


def live(connection: Redis, looked: dict[str, Entry]) -> set[str]:
    """Of entries that were looked up, those that are queued, or started under a lease."""
    found = {request_id: entry for request_id, entry in looked.items() if not entry.damaged}
    queued = {request_id for request_id, entry in found.items() if entry.status == JobStatus.QUEUED}
    return queued | running(connection, found)


def running(connection: Redis, entries: dict[str, Entry]) -> set[str]:
    """Of these entries, the started ones that somebody holds a lease of.

    A worker starts under a lease and ends both in one step; what is started without one was left by a server that lost
    its data. A request that was handed on between the two looks is looked at once more.
    """
    started = {request_id: entry for request_id, entry in entries.items() if entry.status == JobStatus.STARTED}
    held = {
        request_id for queue in {entry.queue for entry in started.values()} for request_id in _leased(connection, queue)
    }
    doubtful = dict(look_up(connection, started.keys() - held))
    again = {request_id for request_id, entry in doubtful.items() if entry != started[request_id]}
    return (started.keys() & held) | again


def held(connection: Redis) -> list[str]:
    """The ids in all queues, on their way out of them, and under leases; a key of a wrong type has none."""
    found: list[str] = []
    for name in queue_names(connection):
        queue = SafeQueue(name, connection)
        for key in (queue.key, queue.intermediate_queue_key):
            with suppress(ResponseError):
                ids = cast(list[bytes], connection.lrange(key, 0, -1))
                found += [request_id.decode("utf-8", "replace") for request_id in ids]
        with suppress(ResponseError):
            found += _leased(connection, name)
    return list(dict.fromkeys(found))


def _leased(connection: Redis, queue: str | None) -> set[str]:
    if queue is None:
        return set()
    key = SafeQueue(queue, connection).started_job_registry.key
    members = cast(list[bytes], connection.zrange(key, 0, -1))
    return {member.decode("utf-8", "replace").partition(":")[0] for member in members}


def enter(
    connection: Redis, queue: SafeQueue, jobs: Sequence[tuple[Job, dict[str, str]]], seen: dict[str, Entry]
) -> list[str]:
    """Write the entries of jobs, with further fields, which nobody takes before they are released.

    Only where they are still as they were seen; returns the ids of those.
    """
    words: list[Any] = []
    for job, further in jobs:
        fields = [word for field in (job.to_dict() | further).items() for word in field]
        words += [job.id, *seen[job.id].version, len(fields), *fields]
    arguments = (queue.failed_job_registry.key, str(ENTERED_SECONDS), *words)
    entered = cast(list[bytes], connection.eval(ENTER, 2, QUEUES_KEY, queue.key, *arguments))
    return [request_id.decode() for request_id in entered]


def release(connection: Redis, queue: SafeQueue, request_ids: Sequence[str], at: str) -> tuple[int, set[str]]:
    """Let workers take requests that were entered with that time, in this order.

    Those that ended meanwhile stay ended. Returns how many wait or run now, and those whose entries are not there any
    more, or another process's.
    """
    waiting, gone = cast(tuple[int, list[bytes]], connection.eval(RELEASE, 1, queue.key, at, *request_ids))
    return waiting, {request_id.decode() for request_id in gone}


def remove_from_lists(connection: Redis, request_ids: Iterable[str]) -> list[str]:
    """Take queued requests out of their queues, each queue in one step; their entries stay for LEAVING_SECONDS.

    Returns those that were queued, or that were about to be.
    """
    by_queue: dict[str, list[str]] = defaultdict(list)
    for request_id, entry in look_up(connection, request_ids):
        if entry.status in (JobStatus.QUEUED, ENTERED) and entry.queue:
            by_queue[entry.queue].append(request_id)
    for name, leaving in by_queue.items():
        scratch = f"cidermill:leaving:{uuid.uuid4().hex}"
        with Step(connection) as pipeline:
            for chunk in chunks(leaving):
                pipeline.sadd(scratch, *chunk)
            pipeline.eval(REMOVE, 2, SafeQueue(name, connection).key, scratch)
            pipeline.delete(scratch)
            for request_id in leaving:  # nobody finds them any more, if this process ends here
                pipeline.expire(Job.key_for(request_id), LEAVING_SECONDS)
            pipeline.execute()
    return [request_id for leaving in by_queue.values() for request_id in leaving]


def end_leases(connection: Redis, request_ids: Iterable[str]) -> None:
    """Take the requests away from whoever runs them."""
    for request_id, entry in look_up(connection, request_ids):
        if entry.status in (JobStatus.STARTED, JobStatus.FINISHED) and entry.queue:
            key = SafeQueue(entry.queue, connection).started_job_registry.key
            leases = cast(Iterator[tuple[bytes, float]], connection.zscan_iter(key, f"{request_id}:*"))
            for member in [member for member, _ in leases]:
                connection.zrem(key, member)
                connection.delete(b"rq:execution:" + member)


def delete(connection: Redis, request_ids: Iterable[str]) -> None:
    """Delete everything but list entries and leases."""
    queues = queue_names(connection)
    for chunk in chunks(request_ids):
        with Step(connection) as pipeline:
            for request_id in chunk:
                pipeline.delete(*(f"{prefix}{request_id}" for prefix in _PREFIXES))
                pipeline.hdel(QUARANTINE_KEY, request_id)
                for name in queues:
                    pipeline.zrem(f"rq:failed:{name}", request_id)
            pipeline.execute()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
