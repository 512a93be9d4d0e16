"""The queue of generation requests, as a producer and a coordinator see it.

A request waits in one of three queues of its model. A worker takes it, runs it under a lease, and its RQ job vanishes
soon after: results do not come back through RQ but through the results stream (api/queue/results.py).
"""

import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

from redis import Redis
from rq import Retry
from rq.job import Job, JobStatus
from rq.queue import EnqueueData
from rq.results import Result

from api.queue import attempts
from api.queue.hardening import JOB_NAME, SafeJob
from api.queue.quarantine import QUARANTINE_KEY
from api.queue.safe_queue import SETTLING_SECONDS, SafeQueue
from api.schemas import PRIORITIES, GenerationRequest, Priority

__all__ = ["JOB_NAME", "RequestQueue", "SafeJob", "SafeQueue", "SetAside", "cancel_key", "queue_name"]

CHUNK = 1000
"""Requests in one transaction: larger ones block the server for everybody."""
FINISHED_SECONDS = 60
FAILED_SECONDS = attempts.KEEP_SECONDS
CANCELLED_SECONDS = 7 * 24 * 3600
RQ_QUEUES_KEY = "rq:queues"

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

T = TypeVar("T")


@dataclass(frozen=True)
class SetAside:
    """A request that Redis will not run again, and why. workers: those that died on it, first to last."""

    request_id: str
    reason: str
    workers: tuple[str, ...] = ()


def queue_name(model: str, priority: Priority) -> str:
    """`<model>:<priority>`."""
    return f"{model}:{priority}"


def cancel_key(batch_id: str) -> str:
    """The key whose existence tells workers to stop requests of the batch."""
    return f"cidermill:cancel:{batch_id}"


class RequestQueue:
    """Puts requests in, takes them out, and finds those that cannot be run.

    max_attempts: workers that a request may lose. request_timeout_seconds: wall time of one attempt.
    settling_seconds: uptime of Redis below which `maintain` does nothing.
    """

    def __init__(
        self,
        connection: Redis,
        *,
        max_attempts: int,
        request_timeout_seconds: float,
        settling_seconds: float = SETTLING_SECONDS,
    ) -> None:
        self._connection = connection
        self._retry = Retry(max=max_attempts - 1, enqueue_at_front=True) if max_attempts > 1 else None
        self._timeout = math.ceil(request_timeout_seconds)
        self._settling_seconds = settling_seconds

    def enqueue(
        self,
        requests: Iterable[GenerationRequest],
        *,
        model: str,
        priority: Priority,
        on_enqueued: Callable[[int], None] | None = None,
    ) -> int:
        """Put requests at the tail, in order; those that Redis already holds as live are skipped.

        on_enqueued: called after each chunk with the number of requests seen so far. Returns how many were added.
        """
        queue = self._queue(queue_name(model, priority))
        added = seen = 0
        for chunk in _chunks(requests):
            live = self.live([request.request_id for request in chunk])
            fresh = {request.request_id: request for request in chunk if request.request_id not in live}
            self._enqueue_chunk(queue, list(fresh.values()))
            added += len(fresh)
            seen += len(chunk)
            if on_enqueued is not None:
                on_enqueued(seen)
        return added

    def live(self, request_ids: Sequence[str]) -> set[str]:
        """Those that Redis holds as queued or started."""
        live: set[str] = set()
        for chunk in _chunks(request_ids):
            for request_id, (status, _, damaged) in self._look_up(chunk).items():
                if status in (JobStatus.QUEUED, JobStatus.STARTED) and not damaged:
                    live.add(request_id)
        return live

    def cancel(self, request_ids: Sequence[str], *, batch_id: str) -> None:
        """Take queued requests out, and tell workers to stop those that run."""
        self._connection.set(cancel_key(batch_id), 1, ex=CANCELLED_SECONDS)
        self._remove_from_lists(request_ids)
        for chunk in _chunks(request_ids):
            queued = [found for found, (status, *_) in self._look_up(chunk).items() if status == JobStatus.QUEUED]
            self._delete(queued, ())

    def set_aside(self, model: str) -> list[SetAside]:
        """The requests of the model that failed: they lost max_attempts workers, or their entry is damaged."""
        names = [queue_name(model, priority) for priority in PRIORITIES]
        found = [self._explain(job_id) for name in names for job_id in self._failed_ids(name)]
        quarantined = cast(dict[bytes, bytes], self._connection.hgetall(QUARANTINE_KEY))
        wanted = {name.encode() for name in names}
        reason = "its queue entry in Redis is damaged or forged"
        return found + [
            SetAside(job_id.decode("utf-8", "replace"), reason)
            for job_id, name in quarantined.items()
            if name in wanted
        ]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Delete every trace of the requests from Redis. A worker that runs one of them loses its lease."""
        names = cast(set[bytes], self._connection.smembers(RQ_QUEUES_KEY))
        queues = [key.decode().removeprefix(SafeQueue.redis_queue_namespace_prefix) for key in names]
        self._remove_from_lists(request_ids)
        for chunk in _chunks(request_ids):
            self._end_leases(chunk)
            self._delete(chunk, queues)

    def maintain(self, model: str) -> None:
        """Bring back requests of dead workers; safe beside workers and other coordinators that do the same."""
        for priority in PRIORITIES:
            self._queue(queue_name(model, priority)).clean()

    def depth(self, model: str) -> dict[Priority, int]:
        """Requests that wait, per priority."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for priority in PRIORITIES:
                pipeline.llen(self._queue(queue_name(model, priority)).key)
            return dict(zip(PRIORITIES, pipeline.execute(), strict=True))

    def demand(self) -> dict[str, int]:
        """Requests that wait, per model that has any."""
        names = cast(set[bytes], self._connection.smembers(RQ_QUEUES_KEY))
        prefix = SafeQueue.redis_queue_namespace_prefix
        models = {key.decode("utf-8", "replace").removeprefix(prefix).rpartition(":")[0] for key in names}
        waiting = {model: sum(self.depth(model).values()) for model in models if model}
        return {model: count for model, count in waiting.items() if count}

    def _queue(self, name: str) -> SafeQueue:
        return SafeQueue(name, self._connection, settling_seconds=self._settling_seconds)

    def _enqueue_chunk(self, queue: SafeQueue, requests: Sequence[GenerationRequest]) -> None:
        if not requests:
            return
        with self._connection.pipeline() as pipeline:
            for request in requests:
                # A finished or failed job of this id has an expiry, which would take the new one with it.
                self._drop(pipeline, request.request_id, [queue.name])
            queue.enqueue_many([self._entry(request) for request in requests], pipeline=pipeline)
            pipeline.execute()

    def _entry(self, request: GenerationRequest) -> EnqueueData:
        return SafeQueue.prepare_data(
            cast(Any, JOB_NAME),
            args=[request.model_dump(mode="json", exclude_defaults=True)],
            timeout=self._timeout,
            result_ttl=FINISHED_SECONDS,
            failure_ttl=FAILED_SECONDS,
            description=request.request_id,  # RQ's default is the whole payload, once more
            job_id=request.request_id,
            retry=self._retry,
        )

    def _look_up(self, request_ids: Sequence[str]) -> dict[str, tuple[str | None, str | None, bool]]:
        """Status, queue name, and whether it is quarantined, of each id."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for request_id in request_ids:
                pipeline.hmget(Job.key_for(request_id), ["status", "origin"])
                pipeline.hexists(QUARANTINE_KEY, request_id)
            # A key of another type is an error of that command alone.
            answers = pipeline.execute(raise_on_error=False)
        found = {}
        for request_id, fields, damaged in zip(request_ids, answers[::2], answers[1::2], strict=True):
            status, origin = (None, None) if isinstance(fields, Exception) else map(_text, fields)
            found[request_id] = (status, origin, bool(damaged))
        return found

    def _remove_from_lists(self, request_ids: Sequence[str]) -> None:
        by_queue: dict[str, list[str]] = defaultdict(list)
        for chunk in _chunks(request_ids):
            for request_id, (status, origin, _) in self._look_up(chunk).items():
                if status == JobStatus.QUEUED and origin:
                    by_queue[origin].append(request_id)
        for name, leaving in by_queue.items():
            scratch = f"cidermill:leaving:{uuid.uuid4().hex}"
            with self._connection.pipeline() as pipeline:
                for chunk in _chunks(leaving):
                    pipeline.sadd(scratch, *chunk)
                pipeline.eval(REMOVE, 2, self._queue(name).key, scratch)
                pipeline.delete(scratch)
                pipeline.execute()

    def _failed_ids(self, name: str) -> list[str]:
        return cast(list[str], self._queue(name).failed_job_registry.get_job_ids(cleanup=False))

    def _explain(self, request_id: str) -> SetAside:
        workers = attempts.lost_workers(self._connection, request_id)
        if not workers:
            return SetAside(request_id, "a worker could not run its queue entry")
        died = f"{len(workers)} worker{'s' if len(workers) > 1 else ''} died"
        return SetAside(request_id, f"{died} while running it: {', '.join(workers)}", workers)

    def _end_leases(self, request_ids: Sequence[str]) -> None:
        for request_id, (_, origin, _) in self._look_up(request_ids).items():
            if origin:
                registry = self._queue(origin).started_job_registry
                members = cast(
                    Iterator[tuple[bytes, float]], self._connection.zscan_iter(registry.key, f"{request_id}:*")
                )
                for member, _score in members:
                    self._connection.zrem(registry.key, member)
                    self._connection.delete(b"rq:execution:" + member)

    def _delete(self, request_ids: Sequence[str], queues: Sequence[str]) -> None:
        with self._connection.pipeline() as pipeline:
            for request_id in request_ids:
                self._drop(pipeline, request_id, queues)
            pipeline.execute()

    def _drop(self, pipeline: Any, request_id: str, queues: Sequence[str]) -> None:
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


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
