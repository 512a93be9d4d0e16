"""Leases: a running request belongs to a worker for as long as that worker renews its lease.

RQ's registry of started jobs holds one entry per running request, scored with the time at which the lease ends.
All times are the Redis server's: Macs whose clocks differ agree on when a lease has ended.

That clock may step forward, as when a machine wakes up, or the server may hang; then all leases end at once, and their
owners live. So nobody ends a lease that has not gone without renewal, before his eyes, for a heartbeat and two looks of
a pulse at the time: C. Looking begins 2 C before the end of a lease, so that it costs no time.

At the defaults C is 7 s (a heartbeat every 5 s, two looks of 1 s), a lease 45 s, and those who live never have less
than 38 s left. Cleaning comes every 6.3 s at the latest (5 s spread by a quarter). A dead worker's lease is noted when
it has 14 s left, 31 s after its last renewal, or up to 6.3 s later; at 44.3 s that note is old enough; the next
cleaning after 45 s ends the lease, at 51.3 s at the latest, and an idle worker takes the request within another look,
0.6 s. That leaves 8 s of the 60 that are promised, one more cleaning: when a process dies while it cleans, its lock is
over before any other one has come twice (CLEANING_SECONDS).
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.job_lifecycle import record_job_failure
from rq.registry import StartedJobRegistry
from rq.utils import utcformat

from api.queue import attempts, deaths, last_seen
from api.queue.guarded import carry_out
from api.queue.quarantine import UnreadableJob, quarantine
from api.queue.results import ANSWERED_SECONDS, RESULTS_STREAM, field_of, publish
from api.schemas import RequestEvent, WorkerInfo
from api.transitions import about

if TYPE_CHECKING:
    from redis.client import Pipeline
    from rq.queue import Queue

logger = logging.getLogger("cidermill.queue")

ENDED_SEEN_MS = 600_000
LONGEST_TICK_SECONDS = 1.0
"""Between two looks of a worker's pulse at the time, on average."""
ENDED = "cidermill:ended:"
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
WANTED = """
local held = redis.call('ZSCORE', KEYS[1], ARGV[1])
local wanted = held and redis.call('HGET', KEYS[2], 'status') ~= 'finished'
"""
TELL_START = f"""{WANTED}
if not wanted then return 0 end
local told = redis.pcall('XADD', KEYS[3], '*', ARGV[2], ARGV[3])
if type(told) == 'table' and told.err and not told.err:find('OOM', 1, true) then return told end
return 1
"""
"""A full server may do without: the answer says as much."""
END = """
local job = redis.call('TYPE', KEYS[2]).ok == 'hash'
if job and ARGV[3] == 'told' and redis.call('HGET', KEYS[2], 'status') ~= 'finished' then return 0 end
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
LOOK = """
local time = redis.call('TIME')
local now, confirm, found = time[1] + time[2] / 1000000, tonumber(ARGV[2]), {}
redis.call('DEL', ARGV[1]) -- of no lease; a full server lets a script on that has written
local leases = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now + 2 * confirm, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 1, #leases, 2 do
  local key, confirmed = ARGV[1] .. leases[i], confirm == 0
  if not confirmed then
    local left = redis.call('PTTL', key)
    if left < 0 or left > tonumber(ARGV[4]) then
      redis.call('SET', key, 1, 'PX', ARGV[4])
    else
      confirmed = left <= ARGV[4] - 1000 * confirm
    end
  end
  if confirmed and tonumber(leases[i + 1]) <= now then found[#found + 1] = leases[i] end
end
return found
"""
"""The leases that are over and confirmed; those that run out are noted."""
MOST_LEASES = 1000
"""In one look, those first that ended first."""


def ended_key(member: str) -> str:
    """Exists from the moment at which a lease is seen to run out, until it is renewed or taken away."""
    return f"{ENDED}{member}"


def confirmed_seconds(heartbeat_seconds: float) -> float:
    """How long a lease must have been seen to run out before anybody ends it, longer than the living let pass."""
    return heartbeat_seconds + 2 * min(LONGEST_TICK_SECONDS, heartbeat_seconds)


def server_time(connection: Redis) -> float:
    """Seconds since the epoch on the Redis server's clock."""
    seconds, microseconds = connection.time()
    return seconds + microseconds / 1e6


class LeaseRegistry(StartedJobRegistry):
    """The leases of one queue. Looking at it (`count`, `get_job_ids`) changes nothing, unlike RQ's."""

    def cleanup(self, timestamp: float | None = None, exception_handlers: list[Any] | None = None) -> None:
        """Do nothing: RQ calls this whenever somebody looks, without a lock, and so doubled jobs. See `reap`."""

    @staticmethod
    def parse_job_id(entry: str | bytes) -> str:
        """The request of a lease, also of a forged one, with which RQ's would end whoever looks."""
        text = entry.decode("utf-8", "replace") if isinstance(entry, bytes) else entry
        return text.partition(":")[0]

    @property
    def _next_keys(self) -> tuple[str, str]:
        """The keys in one of which a request is once its lease is over."""
        return f"rq:queue:{self.name}", f"rq:failed:{self.name}"

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

    def end(self, pipeline: "Pipeline", execution: Execution, job: Job, *, told: bool) -> None:
        """End the lease and the job, with all that was counted about it, as one step. 0: the lease was taken away.

        told: whether its end is on the results stream. Then nothing is done either where the server does not know that:
        it has come back without its last second, and the lease runs out.
        Sent again, as after an answer that was lost, it gives the same answer for as long as the job's hash is there.
        """
        counted = (attempts.attempts_key(job.id), attempts.lost_key(job.id))
        keys = (self.key, job.key, execution.key, f"rq:executions:{job.id}", *counted)
        arguments = (execution.composite_key, str(ANSWERED_SECONDS), "told" if told else "")
        pipeline.eval(END, len(keys), *keys, *arguments)

    def tell_start(self, execution: Execution, job: Job, event: RequestEvent) -> bool:
        """Publish that a generation begins, unless nobody wants it any more (`is_wanted`), as one step."""
        keys = (self.key, job.key, RESULTS_STREAM)
        return bool(self.connection.eval(TELL_START, 3, *keys, execution.composite_key, *field_of(event)))

    def is_wanted(self, execution: Execution, job: Job) -> bool:
        """Whether the lease still belongs to this execution, and nobody else has answered the request meanwhile."""
        script = f"{WANTED} return wanted and 1 or 0"
        return bool(self.connection.eval(script, 2, self.key, job.key, execution.composite_key))

    def holds(self, execution: Execution) -> bool:
        """Whether the lease still belongs to this execution."""
        return self.connection.zscore(self.key, execution.composite_key) is not None

    def while_held(self, execution: Execution, write: Callable[["Pipeline"], None]) -> bool:
        """Commit what `write` adds to a transaction, unless the lease was taken away or the job is not started.

        Returns whether it was committed. Raises ResponseError, and the lease stays, where the request cannot be pushed.
        """
        status = JobStatus.STARTED.value
        member, note = execution.composite_key, ended_key(execution.composite_key)
        troubles = carry_out(
            self.connection, self.key, note, member, status, write, ended=False, needed=self._next_keys
        )
        if troubles:
            logger.error("a key of request %s is damaged or forged: %s", execution.job_id, "; ".join(troubles))
        return troubles is not None

    def renew(self, connection: Redis, execution: Execution, ttl: int) -> bool:
        """Extend the lease to `ttl` seconds from now, over `connection`. False: it was taken away meanwhile."""
        keys = (self.key, execution.key, ended_key(execution.composite_key))
        renewed = connection.eval(RENEW, 3, *keys, execution.composite_key, str(ttl))
        return bool(renewed)

    def reap(self, queue: "Queue", confirm_seconds: float = 0.0) -> None:
        """Put requests whose lease has ended back at the head of `queue`, or to the failed ones.

        A request with attempts left is queued again; one that has lost its last worker fails, and
        RequestQueue.set_aside reports it. confirm_seconds: see `confirmed_seconds`; 0: what is over is ended.
        An entry that makes trouble is set aside, and stops nobody; raises what Redis refuses (ResponseError).
        """
        looked = (self.key, ENDED, f"{confirm_seconds:.3f}", str(MOST_LEASES), str(ENDED_SEEN_MS))
        for member in cast(list[bytes], self.connection.eval(LOOK, 1, *looked)):
            job_id = self.parse_job_id(member)
            try:
                self._reap_one(member, job_id, queue)
            except RedisError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a forged entry provokes
                logger.error("request %s cannot be handed on: %s", job_id, type(error).__name__)
                quarantine(self.connection, job_id, self.name)
                self.connection.zrem(self.key, member)

    def _reap_one(self, member: bytes, job_id: str, queue: "Queue") -> None:
        """Nothing is done when the owner has renewed the lease, or ended the job, since it was looked at."""
        job, status = self._read(job_id)
        started = job is not None and status == JobStatus.STARTED.value
        worker = last_seen.of_worker(self.connection, job.worker_name or "") if job and started else None
        attempt = attempts.latest(self.connection, job_id) if started else 0

        def write(pipeline: "Pipeline") -> None:
            if job is not None and started:
                self._move_on(job, queue, worker, attempt, pipeline)
            elif job is not None and status == JobStatus.QUEUED.value:
                # Its worker died between the lease and the start: no attempt is used up. A second list entry does no
                # harm, the request is taken once.
                pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
                pipeline.lpush(queue.key, job_id)
            pipeline.zrem(self.key, member)
            pipeline.delete(b"rq:execution:" + member)

        note = ENDED.encode() + member
        troubles = carry_out(self.connection, self.key, note, member, status, write, ended=True, needed=self._next_keys)
        if troubles is None:
            logger.debug("request %s moved while its lease was looked at", job_id)
            return
        if troubles:
            logger.error("a key of request %s is damaged or forged: %s", job_id, "; ".join(troubles))
        if any(not trouble.startswith("WRONGTYPE") for trouble in troubles):
            quarantine(self.connection, job_id, self.name)
        elif job is not None and started:
            name = "requeued" if job.get_status(refresh=False) == JobStatus.QUEUED else "set_aside"
            logger.warning(name, extra=about(job_id, job.worker_name, attempt=attempt, reason=LEASE_LOST))

    def _read(self, job_id: str) -> tuple[Job | None, str | bytes]:
        """The job and its status; a damaged entry is set aside, and its status is whatever it says."""
        try:
            job = self.job_class.fetch(job_id, connection=self.connection, serializer=self.serializer)
        except UnreadableJob:
            quarantine(self.connection, job_id, self.name)
            try:
                return None, cast(bytes | None, self.connection.hget(Job.key_for(job_id), "status")) or b""
            except ResponseError:
                return None, b""  # no hash
        except (NoSuchJobError, ValueError):
            return None, b""
        return job, job.get_status(refresh=False).value

    def _move_on(self, job: Job, queue: "Queue", seen: WorkerInfo | None, attempt: int, pipeline: "Pipeline") -> None:
        worker = job.worker_name or "unknown"
        attempts.note_lost(pipeline, job.id, worker)
        if seen is not None:
            began = job.started_at.timestamp() if job.started_at else seen.seen_at
            deaths.note(pipeline, seen.host, deaths.death(job.id, worker, began, seen.seen_at))
        if job.should_retry:
            job.retry(queue, pipeline)
            publish(pipeline, _requeued(job.id, worker, attempt))
        else:
            record_job_failure(job, "the workers that ran this request died", pipeline)


def _requeued(request_id: str, worker: str, attempt: int) -> RequestEvent:
    return RequestEvent(
        kind="requeued", request_id=request_id, worker=worker, attempt=attempt, at=time.time(), reason=LEASE_LOST
    )
