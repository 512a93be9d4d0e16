"""What Redis holds of a request, spread over a hash, lists, registries and counters; and how all of it goes."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from redis import Redis
from rq.job import Job, JobStatus
from rq.results import Result

from api.queue import attempts
from api.queue.quarantine import QUARANTINE_KEY
from api.queue.safe_queue import SafeQueue
from api.queue.steps import Step

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
RELEASE = f"""
local released = 0
for place = 2, #ARGV do
  local key = ARGV[1] .. ARGV[place]
  if redis.call('HGET', key, 'status') == '{ENTERED.value}' then
    redis.call('HSET', key, 'status', '{JobStatus.QUEUED.value}')
    redis.call('PERSIST', key)
    redis.call('RPUSH', KEYS[1], ARGV[place])
    released = released + 1
  end
end
return released
"""

T = TypeVar("T")


class Entry(NamedTuple):
    """status and queue: as the entry says, None without one. damaged: it is quarantined."""

    status: str | None
    queue: str | None
    damaged: bool


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of at most CHUNK."""
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def look_up(connection: Redis, request_ids: Iterable[str]) -> Iterator[tuple[str, Entry]]:
    """The entry of each id."""
    for chunk in chunks(request_ids):
        with connection.pipeline(transaction=False) as pipeline:
            for request_id in chunk:
                pipeline.hmget(Job.key_for(request_id), ["status", "origin"])
                pipeline.hexists(QUARANTINE_KEY, request_id)
            # A key of another type is an error of that command alone.
            answers = pipeline.execute(raise_on_error=False)
        for request_id, fields, damaged in zip(chunk, answers[::2], answers[1::2], strict=True):
            status, queue = (None, None) if isinstance(fields, Exception) else map(_text, fields)
            yield request_id, Entry(status, queue, bool(damaged))


def running(connection: Redis, entries: dict[str, Entry]) -> set[str]:
    """Of these entries, the started ones that somebody holds a lease of.

    A worker starts under a lease and ends both in one step; what is started without one was left by a server that lost
    its data. A request that was handed on between the two looks is looked at once more.
    """
    started = {request_id: entry for request_id, entry in entries.items() if entry.status == JobStatus.STARTED}
    held = {
        request_id for queue in {entry.queue for entry in started.values()} for request_id in _held(connection, queue)
    }
    doubtful = dict(look_up(connection, started.keys() - held))
    again = {request_id for request_id, entry in doubtful.items() if entry != started[request_id]}
    return (started.keys() & held) | again


def _held(connection: Redis, queue: str | None) -> set[str]:
    if queue is None:
        return set()
    key = SafeQueue(queue, connection).started_job_registry.key
    members = cast(list[bytes], connection.zrange(key, 0, -1))
    return {member.decode("utf-8", "replace").partition(":")[0] for member in members}


def release(connection: Redis, queue_key: str, request_ids: Sequence[str]) -> int:
    """Let workers take entered requests, in this order; one that ended meanwhile stays ended. Returns how many."""
    namespace = Job.redis_job_namespace_prefix
    return cast(int, connection.eval(RELEASE, 1, queue_key, namespace, *request_ids))


def remove_from_lists(connection: Redis, request_ids: Iterable[str]) -> list[str]:
    """Take queued requests out of their queues, each queue in one step; returns those that were queued."""
    by_queue: dict[str, list[str]] = defaultdict(list)
    for request_id, entry in look_up(connection, request_ids):
        if entry.status == JobStatus.QUEUED and entry.queue:
            by_queue[entry.queue].append(request_id)
    for name, leaving in by_queue.items():
        scratch = f"cidermill:leaving:{uuid.uuid4().hex}"
        with Step(connection) as pipeline:
            for chunk in chunks(leaving):
                pipeline.sadd(scratch, *chunk)
            pipeline.eval(REMOVE, 2, SafeQueue(name, connection).key, scratch)
            pipeline.delete(scratch)
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
    names = cast(set[bytes], connection.smembers(QUEUES_KEY))
    queues = [name.decode("utf-8", "replace").removeprefix("rq:queue:") for name in names]
    for chunk in chunks(request_ids):
        with Step(connection) as pipeline:
            for request_id in chunk:
                drop(pipeline, request_id, queues)
            pipeline.execute()


def drop(pipeline: Any, request_id: str, queues: Sequence[str]) -> None:
    """Delete the entry with its counters, and its failures in `queues`, as part of a transaction."""
    pipeline.delete(
        Job.key_for(request_id),
        Result.get_key(request_id),  # type: ignore[no-untyped-call]
        f"rq:executions:{request_id}",
        attempts.attempts_key(request_id),
        attempts.lost_key(request_id),
    )
    pipeline.hdel(QUARANTINE_KEY, request_id)
    for name in queues:
        pipeline.zrem(f"rq:failed:{name}", request_id)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
