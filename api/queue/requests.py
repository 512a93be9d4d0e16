"""The queue of generation requests, as a producer and a coordinator see it.

A request waits in one of three queues of its model. A worker takes it, runs it under a lease, and its RQ job vanishes
soon after: results do not come back through RQ but through the results stream (api/queue/results.py).
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from redis import Redis
from rq import Retry
from rq.job import Job
from rq.utils import now, utcformat

from api.duties import do_all
from api.errors import QueueError
from api.pacing import spread
from api.queue import attempts, entries, marks
from api.queue.connection import address
from api.queue.deadlines import on_server_clock
from api.queue.fullness import Fullness
from api.queue.hardening import JOB_NAME, SafeJob, valid_id
from api.queue.impostors import remove_impostors
from api.queue.marks import Mark
from api.queue.prefix_key import PREFIX_FIELD, prefix_key
from api.queue.quarantine import QUARANTINE_KEY
from api.queue.results import answered
from api.queue.safe_queue import HEARTBEAT_SECONDS, SETTLING_SECONDS, SafeQueue
from api.queue.steps import Step
from api.schemas import PRIORITIES, GenerationRequest, Priority

__all__ = ["JOB_NAME", "RequestQueue", "SafeJob", "SafeQueue", "SetAside", "cancel_key", "queue_name"]

logger = logging.getLogger("cidermill.queue")

FINISHED_SECONDS = 60
FAILED_SECONDS = attempts.KEEP_SECONDS
CANCELLED_SECONDS = 7 * 24 * 3600
MOST_TRIES = 5
"""To put requests whose entries vanish between the steps."""
BETWEEN_TRIES_SECONDS = 0.1


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
    settling_seconds: uptime of Redis below which `maintain` does nothing. heartbeat_seconds: of the workers.
    """

    def __init__(
        self,
        connection: Redis,
        *,
        max_attempts: int,
        request_timeout_seconds: float,
        settling_seconds: float = SETTLING_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._connection = connection
        self._retry = Retry(max=max_attempts - 1, enqueue_at_front=True) if max_attempts > 1 else None
        self._timeout = math.ceil(request_timeout_seconds)
        self._settling_seconds = settling_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._fullness = Fullness(connection)

    @property
    def address(self) -> str:
        """Which Redis this is (api/queue/connection.py)."""
        return address(self._connection)

    def enqueue(
        self,
        requests: Iterable[GenerationRequest],
        *,
        model: str,
        priority: Priority,
        settled: Callable[[Sequence[str]], Collection[str]] = lambda _: (),
    ) -> int:
        """Put requests at the tail, in order; those that Redis already holds as live are skipped.

        settled: those of some ids that are not to run after all. It is asked when their entries are there and no worker
        takes them yet: whatever ends a request from then on ends its entry, too. Returns how many were added.
        """
        queue = self._queue(queue_name(model, priority))
        return sum(self._put(queue, chunk, settled) for chunk in entries.chunks(requests))

    def live(self, request_ids: Sequence[str]) -> set[str]:
        """Those that Redis holds as queued, or as started under a lease."""
        return entries.live(self._connection, dict(entries.look_up(self._connection, request_ids)))

    def held(self) -> list[str]:
        """The requests that wait or are under a lease, of all queues."""
        return entries.held(self._connection)

    def answered(self) -> set[str]:
        """Those whose result waits on the results stream to be recorded: no longer live, and not to be run again."""
        return answered(self._connection)

    def start_mark(self, batch_id: str) -> int:
        """How far the batch has been put here (an index); from now on it counts as placed in this Redis."""
        return marks.start(self._connection, batch_id)

    def marks(self, batch_ids: Sequence[str]) -> dict[str, Mark]:
        """How far each of those batches that were placed in this Redis has been put here, in the given order."""
        return marks.read(self._connection, batch_ids)

    def move_mark_up(self, batch_id: str, seen: Mark, index: int) -> None:
        """Requests of the batch from the mark that was seen to that index have been put here."""
        marks.move_up(self._connection, batch_id, seen, index)

    def move_mark_down(self, batch_id: str, index: int) -> None:
        """Requests of the batch from that index on are to come again."""
        marks.move_down(self._connection, batch_id, index)

    def run_of_server(self) -> str:
        """Another one after each start of the server."""
        return str(self._connection.info("server").get("run_id", ""))

    def topping_up(self, model: str, priority: Priority, *, wait: bool) -> AbstractContextManager[bool]:
        """The right to put requests into a queue, as one of several processes; whether it was had."""
        return marks.turn(self._connection, queue_name(model, priority), wait=wait)

    def stop(self, batch_id: str) -> None:
        """Tell workers to stop what they run of a batch, and to start nothing of it."""
        with Step(self._connection) as pipeline:
            pipeline.set(cancel_key(batch_id), 1, ex=CANCELLED_SECONDS)
            pipeline.execute()

    def room(self, model: str, priority: Priority) -> int:
        """Bytes of requests that may be put into a queue now, of which there are some (api/queue/fullness.py)."""
        return self._fullness.room(self._queue(queue_name(model, priority)).key)

    def withdraw(self, request_ids: Sequence[str], *, batch_id: str) -> None:
        """Take queued requests out, and stop the batch."""
        self.stop(batch_id)
        queued = entries.remove_from_lists(self._connection, request_ids)
        entries.delete(self._connection, queued)

    def set_aside(self, model: str) -> list[SetAside]:
        """The requests of the model that failed: they lost max_attempts workers, or their entry is damaged."""
        names = [queue_name(model, priority) for priority in PRIORITIES]
        found = [self._explain(job_id) for name in names for job_id in self._failed_ids(name)]
        reason = "its queue entry in Redis is damaged or forged"
        return found + [SetAside(job_id, reason) for job_id in self._quarantined(names)]

    def ids_set_aside(self, model: str) -> set[str]:
        """Those of `set_aside`, without the reasons."""
        names = [queue_name(model, priority) for priority in PRIORITIES]
        return {job_id for name in names for job_id in self._failed_ids(name)}.union(self._quarantined(names))

    def forget(self, request_ids: Collection[str]) -> None:
        """Delete every trace of the requests from Redis. A worker that runs one of them loses its lease."""
        entries.remove_from_lists(self._connection, request_ids)
        entries.end_leases(self._connection, request_ids)
        entries.delete(self._connection, request_ids)

    def maintain(self, model: str) -> None:
        """Bring back requests of dead workers; safe beside workers and other coordinators that do the same.

        A queue at which Redis refuses something (ResponseError, raised in the end) keeps no other one from it.
        """
        do_all(self._queue(queue_name(model, priority)).clean for priority in PRIORITIES)

    def remove_impostors(self, models: Iterable[str], batch_ids: Iterable[str] = ()) -> None:
        """Delete keys of the queues of these models, and of these batches, that somebody else wrote.

        They stop everybody.
        """
        queues = [queue_name(model, priority) for model in models for priority in PRIORITIES]
        keys = [*map(marks.turn_key, queues), *map(marks.mark_key, batch_ids)]
        remove_impostors(self._connection, queues, keys)

    def depth(self, model: str) -> dict[Priority, int]:
        """Requests that wait, per priority."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for priority in PRIORITIES:
                pipeline.llen(self._queue(queue_name(model, priority)).key)
            return dict(zip(PRIORITIES, pipeline.execute(), strict=True))

    def demand(self) -> dict[str, int]:
        """Requests that wait, per model that has any."""
        models = {name.rpartition(":")[0] for name in entries.queue_names(self._connection)}
        waiting = {model: sum(self.depth(model).values()) for model in models if model}
        return {model: count for model, count in waiting.items() if count}

    def _queue(self, name: str) -> SafeQueue:
        settling, heartbeat = self._settling_seconds, self._heartbeat_seconds
        return SafeQueue(name, self._connection, settling_seconds=settling, heartbeat_seconds=heartbeat)

    def _put(
        self,
        queue: SafeQueue,
        requests: Sequence[GenerationRequest],
        settled: Callable[[Sequence[str]], Collection[str]],
    ) -> int:
        """Put those that are not live at the tail; returns how many.

        What Redis loses meanwhile, or another process takes over, is looked at again.
        """
        added = 0
        left = {request.request_id: request for request in requests}
        for tried in range(MOST_TRIES):
            if tried:
                time.sleep(spread(BETWEEN_TRIES_SECONDS))
            looked = dict(entries.look_up(self._connection, left))
            live = entries.live(self._connection, looked)
            left = {request_id: request for request_id, request in left.items() if request_id not in live}
            if not left:
                return added
            at = now()
            jobs = [self._job(queue, request, at) for request in on_server_clock(self._connection, list(left.values()))]
            entered = entries.enter(self._connection, queue, jobs, looked)
            over = set(settled(entered))
            if over:
                self.forget(over)
            coming = [request_id for request_id in entered if request_id not in over]
            waiting, gone = entries.release(self._connection, queue, coming, utcformat(at))
            added += waiting
            left = {one: request for one, request in left.items() if one in gone or one not in entered}
        if not left.keys() - self.live(list(left)):
            return added
        raise QueueError(f"entries of queue {queue.name} vanish from Redis, or others put them there; try again")

    def _job(self, queue: SafeQueue, request: GenerationRequest, at: datetime) -> tuple[Job, dict[str, str]]:
        """The job that is entered at that time, and what its entry has beside RQ's fields."""
        job = queue.create_job(
            JOB_NAME,
            args=(request.model_dump(mode="json", exclude_defaults=True),),
            timeout=self._timeout,
            result_ttl=FINISHED_SECONDS,
            failure_ttl=FAILED_SECONDS,
            description=request.request_id,  # RQ's default is the whole payload, once more
            job_id=request.request_id,
            status=entries.ENTERED,
            retry=self._retry,
        )
        job.enqueued_at = at
        key = prefix_key(request)
        return job, {PREFIX_FIELD: key} if key else {}

    def _failed_ids(self, name: str) -> list[str]:
        """Without those that are no ids, which are removed."""
        key = self._queue(name).failed_job_registry.key
        members = cast(list[bytes], self._connection.zrange(key, 0, -1))
        if foreign := [member for member in members if valid_id(member) is None]:
            self._connection.zrem(key, *foreign)
            logger.warning(
                "the failed requests of queue %s held %d entries that are no ids; removed", name, len(foreign)
            )
        return [job_id for member in members if (job_id := valid_id(member)) is not None]

    def _quarantined(self, names: Sequence[str]) -> list[str]:
        quarantined = cast(dict[bytes, bytes], self._connection.hgetall(QUARANTINE_KEY))
        wanted = {name.encode() for name in names}
        return [job_id.decode("utf-8", "replace") for job_id, name in quarantined.items() if name in wanted]

    def _explain(self, request_id: str) -> SetAside:
        workers = attempts.lost_workers(self._connection, request_id)
        if not workers:
            return SetAside(request_id, "a worker could not run its queue entry")
        died = f"{len(workers)} worker{'s' if len(workers) > 1 else ''} died"
        return SetAside(request_id, f"{died} while running it: {', '.join(workers)}", workers)
