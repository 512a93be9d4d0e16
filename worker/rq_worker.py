"""RQ's in-process worker, made safe for requests that run for minutes (facts: RQ 3.0).

RQ's SimpleWorker keeps the engine in memory, but it renews nothing while a job runs, so a dead worker's request would
wait for its whole timeout; it commits results of jobs that run elsewhere by then; and it interrupts with SIGALRM.
"""

import logging
import math
import sys
from contextlib import suppress
from typing import Any, cast

from redis import Redis, exceptions
from rq import SimpleWorker
from rq.command import parse_payload
from rq.exceptions import StopRequested
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.timeouts import BaseDeathPenalty
from rq.utils import now
from rq.worker.base import WorkerStatus

from api.queue import attempts
from api.queue.connection import set_patience
from api.queue.hardening import JOB_NAME, SafeJob
from api.queue.impostors import remove_impostors
from api.queue.leases import LeaseRegistry
from api.queue.requests import queue_name
from api.queue.results import publish
from api.queue.safe_queue import POLL_SECONDS, SafeQueue
from api.schemas import PRIORITIES
from api.settings import Settings
from worker.job import GenerationJob
from worker.pulse import Pulse
from worker.run import Run, StopReason
from worker.shutdown import Shutdown

logger = logging.getLogger("cidermill.worker")

WORKER_TTL_SECONDS = 20
LONGEST_WAIT_SECONDS = 5
BEATS_TO_SETTLE = 3
"""Heartbeats, beyond a whole lease, that a restarted server gives the owners of leases before anybody ends them."""


class NotOurs(Exception):
    """The request was answered, cancelled or handed on between its way out of the queue and its start."""


class NoDeathPenalty(BaseDeathPenalty):
    """No SIGALRM: it would land anywhere in the engine. The run's deadline is asked once a pass instead."""

    def setup_death_penalty(self) -> None:
        pass

    def cancel_death_penalty(self) -> None:
        pass


class GenerationRqJob(SafeJob):
    """A job that may run: the one function, bound to the run by the worker that took it."""

    job: GenerationJob | None = None
    run: Run | None = None

    @property
    def func(self) -> Any:
        if self.func_name != JOB_NAME or self.instance is not None or self.kwargs or self.run is None:
            self._refuse()
        assert self.job is not None
        return self._perform

    def _perform(self, *arguments: object) -> None:
        assert self.job is not None
        assert self.run is not None
        self.job.perform(self.run, *arguments)


class GenerationWorker(SimpleWorker):
    """Takes requests of one model, high before normal before low, one at a time."""

    job_class = GenerationRqJob
    queue_class: type[Queue] = SafeQueue
    death_penalty_class = NoDeathPenalty

    def __init__(
        self,
        model: str,
        *,
        name: str,
        connection: Redis,
        settings: Settings,
        job: GenerationJob,
        pulse: Pulse,
        shutdown: Shutdown,
        patience_seconds: float,
    ) -> None:
        """patience_seconds: how long Redis is tried again while a request is booked."""
        self._lease_seconds = math.ceil(settings.lease_seconds)
        self._job = job
        self._pulse = pulse
        self._shutdown_request = shutdown
        self._patience_seconds = patience_seconds
        self._current: Run | None = None
        self._refused: exceptions.NoPermissionError | None = None
        self._execution: Execution | None = None
        settling = settings.lease_seconds + BEATS_TO_SETTLE * settings.heartbeat_seconds
        queues = [
            SafeQueue(
                queue_name(model, priority),
                connection,
                settling_seconds=settling,
                job_class=GenerationRqJob,
                death_penalty_class=NoDeathPenalty,
            )
            for priority in PRIORITIES
        ]
        super().__init__(
            queues,
            name=name,
            connection=connection,
            serializer="json",
            worker_ttl=WORKER_TTL_SECONDS,
            maintenance_interval=max(1, round(settings.heartbeat_seconds)),
            log_job_description=False,
        )

    # The loop: wait, maintain, stop.

    def _install_signal_handlers(self) -> None:
        """RQ's would raise in the middle of a Redis call, or of the engine; worker/process.py has its own."""

    def register_birth(self) -> None:
        """After the engine was loaded, which takes minutes."""
        remove_impostors(self.connection, self.queue_names())
        super().register_birth()  # type: ignore[no-untyped-call]

    def check_for_suspension(self, burst: bool) -> None:
        """No: one key in Redis would stop the fleet, and nothing here sets it."""

    def teardown(self) -> None:
        """Leave at once, also during an outage: what is not deregistered expires."""
        set_patience(self.connection, 0)
        with suppress(exceptions.RedisError):
            super().teardown()  # type: ignore[no-untyped-call]

    def run_maintenance_tasks(self) -> None:
        """RQ's loop ends when this raises, too."""
        try:
            for queue in self.queues:
                cast(SafeQueue, queue).clean()
        except exceptions.ResponseError as error:
            self._note_refusal(error, "dead workers were looked for")
        self.last_cleaned_at = cast(None, now())

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """The next request; raises StopRequested when the worker should stop. An outage of Redis is waited out."""
        wait = POLL_SECONDS
        set_patience(self.connection, 0)  # else a signal would wait for the end of an outage
        while not self._shutdown_request.requested:
            try:
                found = self._look()
                wait = POLL_SECONDS
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                logger.warning("Redis does not answer; trying again in %.1f s", wait)
                found = None
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            except exceptions.ResponseError as error:
                self._note_refusal(error, f"a request was looked for; trying again in {wait:.1f} s")
                found = None
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            if self._refused is not None:
                logger.error("%s; cidermill redis-check --role worker says what is missing", self._refused)
                raise StopRequested
            if found is not None:
                set_patience(self.connection, self._patience_seconds)
                return found
            self._shutdown_request.wait(wait)
        raise StopRequested

    def _look(self) -> tuple[Job, Queue] | None:
        if self.get_state() != WorkerStatus.IDLE:
            self.set_state(WorkerStatus.IDLE)
        if self.should_run_maintenance_tasks:
            self.heartbeat()
            self.run_maintenance_tasks()
        found = SafeQueue.dequeue_any(self.queues, None, self.connection, job_class=GenerationRqJob)
        if found is not None:
            found[0].redis_server_version = self.get_redis_server_version()  # type: ignore[no-untyped-call]
        return found

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's loop ends when this raises, and would take the engine with it."""
        try:
            super().heartbeat(timeout, pipeline)
        except exceptions.RedisError as error:
            logger.warning("Redis takes no heartbeat: %s", type(error).__name__)

    # One request: its lease, its run.

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        return self._lease_seconds

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a request under a lease that the pulse renews."""
        assert isinstance(job, GenerationRqJob)
        try:
            execution = self._execution = self.prepare_execution(job)
            run = Run(job.id, cast(int, job.timeout), self._shutdown_request.hand_back_due)
            job.job, job.run, self._current = self._job, run, run
            self._pulse.watch(run, lambda pulse: self._renew(pulse, job, execution))
            try:
                self.perform_job(job, queue, execution)
            finally:
                self._pulse.unwatch()
                self._pulse.describe(completed=self._job.completed)
                self._current = None
            if not self._shutdown_request.requested:
                self._job.upkeep()
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            logger.error("Redis went away while request %s was booked; its lease decides", job.id)
            self._await_redis()
        except exceptions.ResponseError as error:
            self._note_refusal(error, f"request {job.id} was booked; its lease decides")

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """Start under the lease, in one step. RQ writes without a look, and brings back what was taken away.

        Raises NotOurs.
        """
        assert self._execution is not None

        def ready(status: bytes | None, worker: bytes | None) -> bool:
            ours = status == JobStatus.STARTED.encode() and worker == self.name.encode()  # the answer was lost
            return ours or status == JobStatus.QUEUED.encode()

        def start(pipeline: Any) -> None:
            self.heartbeat(self._lease_seconds, pipeline=pipeline)
            job.prepare_for_execution(self.name, pipeline=pipeline)
            pipeline.persist(job.key)
            pipeline.lrem(Queue(job.origin, connection=self.connection).intermediate_queue_key, 1, job.id)

        if not cast(LeaseRegistry, job.started_job_registry).while_held(self._execution, ready, start):
            raise NotOurs

    def _renew(self, connection: Redis, job: Job, execution: Execution) -> bool:
        """On the pulse's thread. RQ's maintain_heartbeats would bring back what was taken away."""
        self.heartbeat(WORKER_TTL_SECONDS + 60, pipeline=cast(Any, connection))
        registry = cast(LeaseRegistry, job.started_job_registry)
        return registry.renew(connection, execution, self._lease_seconds)

    def handle_payload(self, message: Any) -> None:
        """Of RQ's commands only the one that stops a request: anybody who can publish could stop a fleet."""
        try:
            if parse_payload(message)["command"] == "stop-job":
                super().handle_payload(message)  # type: ignore[no-untyped-call]
                return
        except Exception as error:  # noqa: BLE001 - whatever a forged message provokes; RQ's thread would end with it
            logger.warning("a message on RQ's channel cannot be read: %s", type(error).__name__)
            return
        logger.warning("a command that came over RQ's channel is ignored; only stop-job is obeyed")

    def kill_horse(self, sig: Any = None) -> None:
        """RQ's stop command for the running request."""
        if self._current is not None:
            self._current.stop(StopReason.CANCELLED)

    def _await_redis(self) -> None:
        while not self._shutdown_request.wait(POLL_SECONDS):
            try:
                self.connection.ping()
                return
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                continue
        raise StopRequested

    # The books: only the holder of the lease may write them.

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """RQ also writes a heartbeat here, which would bring a deleted job back to life."""
        job.ended_at = now()

    def handle_job_success(self, job: Job, queue: Queue, started_job_registry: Any, execution: Execution) -> None:
        assert isinstance(job, GenerationRqJob)
        if not self._holds(job, execution):
            return
        if job.run is not None and job.run.stopped_by is StopReason.HAND_BACK:
            self._hand_back(job, queue, execution, job.run)
            return
        super().handle_job_success(job, queue, started_job_registry, execution)
        self.connection.delete(attempts.attempts_key(job.id), attempts.lost_key(job.id))

    def handle_job_failure(
        self,
        job: Job,
        queue: Queue,
        started_job_registry: Any = None,
        exc_string: str = "",
        execution: Execution | None = None,
    ) -> None:
        if execution is None:
            return
        error = sys.exc_info()[1]
        if isinstance(error, NotOurs):
            self._let_go(job, execution)
        elif isinstance(error, exceptions.ResponseError) and not _of_wrong_type(error):
            # Nothing is booked, the lease ends: the request is not to blame.
            self.executions.pop(execution.id, None)
            self._note_refusal(error, f"request {job.id} was booked; its lease decides")
        elif self._holds(job, execution):
            super().handle_job_failure(job, queue, started_job_registry, exc_string, execution)

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """RQ logs the arguments and the message, which is to say the prompt."""
        if exc_info[0] is NotOurs:
            logger.info("request %s is not to be run here any more", job.id)
            return
        logger.error("request %s could not be run: %s", job.id, getattr(exc_info[0], "__name__", "unknown"))

    def _note_refusal(self, error: exceptions.ResponseError, when: str) -> None:
        """Redis is full, or forbids something, which it will do again: then the worker stops."""
        logger.error("Redis refused something while %s: %s", when, _reason(error))
        if isinstance(error, exceptions.NoPermissionError):
            self._refused = error
        elif _of_wrong_type(error):
            remove_impostors(self.connection, self.queue_names())

    def _holds(self, job: Job, execution: Execution) -> bool:
        """Whether the lease is still ours. If not, the request runs elsewhere and its books are not ours to write.

        The check and the commit are not one transaction; that a result counts once is the ledger's doing.
        """
        if cast(LeaseRegistry, job.started_job_registry).holds(execution):
            return True
        logger.warning("request %s ran beyond its lease; it belongs to another worker now", job.id)
        self.executions.pop(execution.id, None)
        self.connection.srem(self.executions_key, execution.composite_key)
        return False

    def _hand_back(self, job: Job, queue: Queue, execution: Execution, run: Run) -> None:
        """Put the request at the head of its queue; this attempt does not count."""

        def write(pipeline: Any) -> None:
            job.set_status(JobStatus.QUEUED, pipeline=pipeline)
            queue.push_job_id(job.id, pipeline=pipeline, at_front=True)
            attempts.take_back(pipeline, job.id)
            publish(pipeline, self._job.handed_back(run))
            execution.delete(job=job, pipeline=pipeline)

        registry = cast(LeaseRegistry, job.started_job_registry)
        if registry.while_held(execution, lambda status, _: status == JobStatus.STARTED.encode(), write):
            logger.info("request %s handed back", job.id)
        else:  # answered by one that had lost it, or taken away
            self._let_go(job, execution)
        self.executions.pop(execution.id, None)

    def _let_go(self, job: Job, execution: Execution) -> None:
        """Give up the lease and leave the request's books as they are."""
        with self.connection.pipeline() as pipeline:
            self.cleanup_execution(job, pipeline=pipeline, execution=execution)
            pipeline.execute()


def _reason(error: exceptions.ResponseError) -> str:
    """What the server said; redis-py puts the command before it, and in that a prompt."""
    return str(error).rpartition("caused error: ")[2]


def _of_wrong_type(error: exceptions.ResponseError) -> bool:
    return "WRONGTYPE" in str(error)
