"""A queue whose entries survive the death of whoever holds them, at every moment.

A request that is taken moves, in one step, from its queue to an intermediate list, and leaves that when its worker
has a lease. What stays in the intermediate list lost its worker in between, and is given back.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue
from rq.exceptions import DequeueTimeout, NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.worker_registration import clean_worker_registry

from api.queue.elsewhere import MOST_PASSED_OVER, Failure
from api.queue.hardening import READ, SafeJob, valid_id
from api.queue.leases import LeaseRegistry, confirmed_seconds
from api.queue.prefix_order import ROUND, ROUND_SECONDS, TAKE_IN_ORDER, TakenLast, round_key
from api.queue.quarantine import UnreadableJob, quarantine

if TYPE_CHECKING:
    from rq.worker import BaseWorker

logger = logging.getLogger("cidermill.queue")

POLL_SECONDS = 0.5
GRACE_SECONDS = 10
"""How long an entry stays in the intermediate list before it counts as stranded."""
FIRST_SEEN_SECONDS = 3600
CLEANING_SECONDS = 3
"""How long a process that dies while it cleans keeps others from it: shorter than anybody's 3.75 s between two tries.
Two that clean at once do no harm: each hand-over is one script that looks whether it is still due."""
SETTLING_SECONDS = 60.0
"""Uptime of the server below which nobody's lease is ended: after an outage the owners get time to renew."""
HEARTBEAT_SECONDS = 5.0

TAKE = f"""{READ}{TAKE_IN_ORDER}
for i = 1, #KEYS, 3 do
  local id = take_in_order(KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[2], {ROUND}, {ROUND_SECONDS})
  if id then return {{i, id, read(ARGV[1] .. id)}} end
end
"""
"""From the first list that has any: which list that is, the id, and what is read of its entry."""
GIVE_BACK = """
redis.call('DEL', KEYS[3]) -- first: a server that is full lets a script on that has written
redis.call('LPUSH', KEYS[2], ARGV[1])
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then redis.call('LREM', KEYS[2], 1, ARGV[1]) end
"""
"""Pushed before it is taken away: where that fails, it stays."""


class Handover(IntermediateQueue):
    """The intermediate list: requests that were taken by a worker that has no lease yet."""

    def should_be_cleaned_up(self, job_id: str) -> bool:
        """Whether the entry was first seen more than the grace ago, on the server's clock."""
        left = self.connection.ttl(self.get_first_seen_key(job_id))
        return 0 <= left <= FIRST_SEEN_SECONDS - GRACE_SECONDS

    def set_first_seen(self, job_id: str) -> bool:
        """Note that the entry is there; True when it was not noted before."""
        key = self.get_first_seen_key(job_id)
        with self.connection.pipeline() as pipeline:
            pipeline.set(key, 1, nx=True, ex=FIRST_SEEN_SECONDS)
            return bool(pipeline.execute()[0])

    def cleanup(self, worker: "BaseWorker | None", queue: Queue) -> None:
        """Give stranded requests back at the head of their queue; no attempt is used up."""
        started = set(queue.started_job_registry.get_job_ids(cleanup=False))
        for entry in cast(list[bytes], self.connection.lrange(self.key, 0, -1)):
            job_id = valid_id(entry)
            if job_id is None or not _is_queued(queue, job_id):
                if job_id not in started:
                    self.connection.lrem(self.key, 1, cast(str, entry))
            elif job_id not in started and not self.set_first_seen(job_id) and self.should_be_cleaned_up(job_id):
                logger.warning("request %s was stranded on its way to a worker; given back", job_id)
                self.give_back(job_id)

    def give_back(self, job_id: str) -> None:
        """Move the entry to the head of the queue."""
        keys = (self.key, self.queue_key, self.get_first_seen_key(job_id))
        self.connection.eval(GIVE_BACK, 3, *keys, job_id)


class SafeQueue(Queue):
    """One queue, `<model>:<priority>`. Always JSON, always SafeJob or a subclass of it."""

    job_class = SafeJob

    def __init__(
        self,
        name: str,
        connection: Redis,
        *,
        settling_seconds: float = SETTLING_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        taken_last: TakenLast | None = None,
        avoids: Callable[[Failure | None], bool] = lambda _: False,
        **options: Any,
    ) -> None:
        """settling_seconds: see SETTLING_SECONDS; with 0, leases are ended as soon as they are over.
        heartbeat_seconds: of those who hold leases. taken_last: of a worker over all of its queues. avoids: whether
        that worker leaves a request that failed so to others.

        options: RQ's; the serializer cannot be chosen.
        """
        options["serializer"] = JSONSerializer
        super().__init__(name, connection=connection, **options)
        self._settling_seconds = settling_seconds
        self._confirmed_seconds = confirmed_seconds(heartbeat_seconds) if settling_seconds > 0 else 0.0
        self.taken_last = taken_last or TakenLast()
        self.avoids = avoids

    @property
    def started_job_registry(self) -> LeaseRegistry:
        return LeaseRegistry(queue=self, job_class=self.job_class)

    @property
    def intermediate_queue(self) -> Handover:
        return Handover(self.key, connection=self.connection)

    def acquire_maintenance_lock(self) -> bool:
        """Whether this process may clean now. Never soon after a start of the server."""
        if self.connection.info("server")["uptime_in_seconds"] < self._settling_seconds:
            return False
        with self.connection.pipeline() as pipeline:  # which a full server does not refuse to a worker
            pipeline.set(self.registry_cleaning_key, 1, nx=True, ex=CLEANING_SECONDS)
            pipeline.ttl(self.registry_cleaning_key)
            acquired, left = pipeline.execute()
        if not 0 <= left <= CLEANING_SECONDS:  # forged: it would never end
            self.connection.delete(self.registry_cleaning_key)
        return bool(acquired)

    def clean(self) -> None:
        """Bring back requests of dead workers, unless another process is at it.

        RQ's own pass also follows dependencies, groups and rate limits, which nobody here uses and anybody could forge.
        """
        if not self.acquire_maintenance_lock():
            return
        try:
            self.started_job_registry.reap(self, self._confirmed_seconds)
            self.intermediate_queue.cleanup(None, self)
            self.failed_job_registry.cleanup()
            self.finished_job_registry.cleanup()
            with suppress(UnicodeDecodeError):  # a forged worker name
                clean_worker_registry(self)
        finally:
            self.release_maintenance_lock()  # type: ignore[no-untyped-call]

    @classmethod
    def dequeue_any(
        cls,
        queues: Iterable[Queue],
        timeout: int | None,
        connection: Redis,  # noqa: ARG003 - RQ passes what the queues already have
        job_class: type[Job] | None = None,
        serializer: Any = None,  # noqa: ARG003
        death_penalty_class: Any = None,  # noqa: ARG003
    ) -> tuple[Job, Queue] | None:
        """Take the next request (api/queue/prefix_order.py), queues in the given order.

        timeout: seconds to wait; None = not at all. The first queue knows what was taken last.
        RQ's own way for several queues (BLPOP) loses the request of a worker that dies right after it.
        """
        ordered = cast(list[SafeQueue], list(queues))
        end = time.monotonic() + (timeout or 0)
        while True:
            found = _take(ordered, cast(type[SafeJob], job_class or cls.job_class))
            if found is not None or timeout is None:
                return found
            left = end - time.monotonic()
            if left <= 0:
                raise DequeueTimeout(timeout, [queue.key for queue in ordered])
            time.sleep(min(POLL_SECONDS, left))


def _take(queues: Sequence[SafeQueue], job_class: type[SafeJob]) -> tuple[Job, Queue] | None:
    """Move entries to the intermediate lists until one of them is a request that is really queued.

    What is not to be taken by this worker goes back to the head of its queue.
    """
    connection, last = queues[0].connection, queues[0].taken_last
    keys = [key for queue in queues for key in (queue.key, queue.intermediate_queue_key, round_key(queue.name))]
    namespace = job_class.redis_job_namespace_prefix
    passed_over: list[tuple[SafeQueue, str]] = []
    try:
        while (taken := cast(Any, connection.eval(TAKE, len(keys), *keys, namespace, last.key))) is not None:
            first, entry, found = taken
            queue = queues[first // 3]
            job = _queued_job(queue, job_class, entry, found)
            if job is None:
                connection.lrem(queue.intermediate_queue_key, 1, entry)
            elif not queue.avoids(job.failure):
                last.key = job.prefix
                return job, queue
            else:
                passed_over.append((queue, job.id))
                if len(passed_over) == MOST_PASSED_OVER:
                    return None
        return None
    finally:
        for queue, job_id in reversed(passed_over):
            queue.intermediate_queue.give_back(job_id)


def _queued_job(
    queue: Queue, job_class: type[SafeJob], entry: bytes, found: list[bytes | None] | int
) -> SafeJob | None:
    """The job of a list entry; None for what is cancelled, listed twice, gone, damaged or forged. found: see READ."""
    job_id = valid_id(entry)
    if job_id is None:
        logger.warning("queue %s held an entry that is no request id; dropped", queue.name)
        return None
    job = job_class(job_id, connection=queue.connection, serializer=queue.serializer)
    try:
        job.take_over(found)
        if job.origin != queue.name:
            raise UnreadableJob(job_id)
    except UnreadableJob:
        quarantine(queue.connection, job_id, queue.name)
        return None
    except NoSuchJobError:
        return None
    return job if job.get_status(refresh=False) == JobStatus.QUEUED else None


def _is_queued(queue: Queue, job_id: str) -> bool:
    try:
        status = cast(bytes | None, queue.connection.hget(Job.key_for(job_id), "status"))
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return False  # somebody else wrote the key
    return status == JobStatus.QUEUED.value.encode()
