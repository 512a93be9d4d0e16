"""Leases: a running request belongs to a worker for as long as that worker renews its lease.

RQ's registry of started jobs holds one entry per running request, scored with the time at which the lease ends.
All times are the Redis server's: Macs whose clocks differ agree on when a lease has ended.
"""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from redis import Redis
from redis.exceptions import ResponseError, WatchError
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.job_lifecycle import record_job_failure
from rq.registry import StartedJobRegistry
from rq.utils import utcformat

from api.queue import attempts, deaths, last_seen
from api.queue.quarantine import UnreadableJob, quarantine
from api.queue.results import ANSWERED_SECONDS, publish
from api.schemas import RequestEvent
from api.transitions import about

if TYPE_CHECKING:
    from redis.client import Pipeline
    from rq.queue import Queue

logger = logging.getLogger("cidermill.queue")

ENDED_SEEN_MS = 600_000
LEASE_LOST = "lease_lost"
"""Why a request is queued again whose worker fell silent."""

LEASE = """
local now = redis.call('TIME')
return redis.call('ZADD', KEYS[1], now[1] + now[2] / 1000000 + ARGV[2], ARGV[1])
"""
START = """
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local status, worker = unpack(redis.call('HMGET', KEYS[2], 'status', 'worker_name'))
if status ~= 'queued' and not (status == 'started' and worker == ARGV[3]) then return 0 end
redis.call('HSET', KEYS[2], 'status', 'started', 'worker_name', ARGV[3], 'started_at', ARGV[4],
  'last_heartbeat', ARGV[4])
redis.call('PERSIST', KEYS[2])
redis.call('LREM', KEYS[3], 1, ARGV[2])
return 1
"""
END = """
local job = redis.call('TYPE', KEYS[2]).ok == 'hash'
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return job and redis.call('HGET', KEYS[2], 'ended_by') == ARGV[1] and 1 or 0
end
if job then
  redis.call('HSET', KEYS[2], 'status', 'finished', 'ended_by', ARGV[1])
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
redis.call('DEL', unpack(KEYS, 3))
return 1
"""
RENEW = """
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local now = redis.call('TIME')
redis.call('DEL', KEYS[3]) -- first: a server that is full lets a script on that has written
redis.call('ZADD', KEYS[1], now[1] + ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
"""


def ended_key(member: str) -> str:
    """Exists from the moment at which a lease is seen to have ended, until it is renewed or taken away."""
    return f"cidermill:ended:{member}"


def server_time(connection: Redis) -> float:
    """Seconds since the epoch on the Redis server's clock."""
    seconds, microseconds = connection.time()
    return seconds + microseconds / 1e6


class LeaseRegistry(StartedJobRegistry):
    """The leases of one queue. Looking at it (`count`, `get_job_ids`) changes nothing, unlike RQ's."""

    def cleanup(self, timestamp: float | None = None, exception_handlers: list[Any] | None = None) -> None:
        """Do nothing: RQ calls this whenever somebody looks, without a lock, and so doubled jobs. See `reap`."""

    def add_execution(self, execution: Execution, pipeline: "Pipeline", ttl: int = 0, xx: bool = False) -> int:
        """Make a lease of `ttl` seconds from the moment at which the server runs the pipeline."""
        assert not xx, "a lease is renewed by `renew`"
        return cast(int, pipeline.eval(LEASE, 1, self.key, execution.composite_key, str(ttl)))

    def start(self, pipeline: "Pipeline", execution: Execution, job: Job, worker: str) -> None:
        """Show the job as started by `worker` and take it off the intermediate list, as one step.

        The pipeline's answer to it is 0, and nothing is done, when the lease was taken away, or when the job is neither
        queued nor, since the answer to the same step was lost, started by this worker.
        """
        job.worker_name, job.started_at = worker, datetime.now(UTC)
        job._status = JobStatus.STARTED
        keys = (self.key, job.key, f"rq:queue:{job.origin}:intermediate")
        pipeline.eval(START, 3, *keys, execution.composite_key, job.id, worker, utcformat(job.started_at))

    def end(self, pipeline: "Pipeline", execution: Execution, job: Job) -> None:
        """End the lease and the job, with all that was counted about it, as one step. 0: the lease was taken away.

        Sent again, as after an answer that was lost, it gives the same answer for as long as the job's hash is there.
        """
        counted = (attempts.attempts_key(job.id), attempts.lost_key(job.id))
        keys = (self.key, job.key, execution.key, f"rq:executions:{job.id}", *counted)
        pipeline.eval(END, len(keys), *keys, execution.composite_key, str(ANSWERED_SECONDS))

    def holds(self, execution: Execution) -> bool:
        """Whether the lease still belongs to this execution."""
        return self.connection.zscore(self.key, execution.composite_key) is not None

    def while_held(self, execution: Execution, write: Callable[["Pipeline"], None]) -> bool:
        """Commit what `write` adds to a transaction, unless the lease was taken away or the job is not started.

        Returns whether it was committed.
        """
        key = Job.key_for(execution.job_id)

        def commit(pipeline: "Pipeline") -> bool:
            held = pipeline.zscore(self.key, execution.composite_key) is not None
            status = cast(bytes | None, pipeline.hget(key, "status"))
            pipeline.multi()
            if not held or status != JobStatus.STARTED.encode():
                return False
            write(pipeline)
            return True

        committed = self.connection.transaction(cast(Any, commit), self.key, key, value_from_callable=True)
        return cast(bool, committed)

    def renew(self, connection: Redis, execution: Execution, ttl: int) -> bool:
        """Extend the lease to `ttl` seconds from now, over `connection`. False: it was taken away meanwhile."""
        keys = (self.key, execution.key, ended_key(execution.composite_key))
        renewed = connection.eval(RENEW, 3, *keys, execution.composite_key, str(ttl))
        return bool(renewed)

    def reap(self, queue: "Queue", confirm_seconds: float = 0.0) -> None:
        """Put requests whose lease has ended back at the head of `queue`, or to the failed ones.

        A request with attempts left is queued again; one that has lost its last worker fails, and
        RequestQueue.set_aside reports it. confirm_seconds: how long a lease must have been seen as ended. When the
        server itself hung, all leases end at once, and their owners renew them in its first moments.
        """
        for member, job_id in self._ended():
            if not self._confirmed(member, confirm_seconds):
                continue
            try:
                self._reap_one(member, job_id, queue)
            except WatchError:
                logger.debug("request %s moved while its lease was looked at", job_id)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                logger.error("a key of request %s is damaged or forged: its lease ends, and no more than that", job_id)

    def _ended(self) -> Iterator[tuple[bytes, str]]:
        now = server_time(self.connection)
        for member in cast(list[bytes], self.connection.zrangebyscore(self.key, 0, now)):
            yield member, member.decode("utf-8", "replace").partition(":")[0]

    def _confirmed(self, member: bytes, confirm_seconds: float) -> bool:
        """Whether the lease was seen as ended so long ago already, by the server's clock; if never, note it now."""
        if confirm_seconds <= 0:
            return True
        key = ended_key(member.decode("utf-8", "replace"))
        if self.connection.set(key, 1, nx=True, px=ENDED_SEEN_MS):
            return False
        left = self.connection.pttl(key)
        return 0 <= left <= ENDED_SEEN_MS - 1000 * confirm_seconds

    def _reap_one(self, member: bytes, job_id: str, queue: "Queue") -> None:
        """One transaction that fails when the owner renews the lease or ends the job in between."""
        with self.connection.pipeline() as pipeline:
            pipeline.watch(self.key, Job.key_for(job_id))  # type: ignore[no-untyped-call]
            ends = pipeline.zscore(self.key, member)
            if ends is None or ends > server_time(self.connection):
                return
            job = self._started_job(job_id)
            host = last_seen.host_of(self.connection, job.worker_name or "") if job else None
            attempt = attempts.latest(self.connection, job_id) if job else 0
            on_its_way = job is None and pipeline.hget(Job.key_for(job_id), "status") == JobStatus.QUEUED.encode()
            pipeline.multi()
            if job is not None:
                self._move_on(job, queue, host, attempt, pipeline)
            elif on_its_way:
                # Its worker died between the lease and the start: no attempt is used up. A second list entry does no
                # harm, the request is taken once.
                pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
                pipeline.lpush(queue.key, job_id)
            pipeline.zrem(self.key, member)
            pipeline.delete(ended_key(member.decode("utf-8", "replace")))
            pipeline.delete(b"rq:execution:" + member)
            pipeline.execute()
            if job is not None:
                name = "requeued" if job.get_status(refresh=False) == JobStatus.QUEUED else "set_aside"
                logger.warning(name, extra=about(job_id, job.worker_name, attempt=attempt, reason=LEASE_LOST))

    def _started_job(self, job_id: str) -> Job | None:
        """The job, when it is really running; an entry of anything else is a leftover."""
        try:
            job = self.job_class.fetch(job_id, connection=self.connection, serializer=self.serializer)
        except UnreadableJob:
            quarantine(self.connection, job_id, self.name)
            return None
        except (NoSuchJobError, ValueError):
            return None
        return job if job.get_status(refresh=False) == JobStatus.STARTED else None

    def _move_on(self, job: Job, queue: "Queue", host: str | None, attempt: int, pipeline: "Pipeline") -> None:
        worker = job.worker_name or "unknown"
        attempts.note_lost(pipeline, job.id, worker)
        if host is not None:
            deaths.note(pipeline, host, deaths.Death(job.id, worker))
        if job.should_retry:
            job.retry(queue, pipeline)
            publish(pipeline, _requeued(job.id, worker, attempt))
        else:
            record_job_failure(job, "the workers that ran this request died", pipeline)


def _requeued(request_id: str, worker: str, attempt: int) -> RequestEvent:
    return RequestEvent(
        kind="requeued", request_id=request_id, worker=worker, attempt=attempt, at=time.time(), reason=LEASE_LOST
    )
