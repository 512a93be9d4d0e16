"""RQ's books about one run: what may run, and that only the holder of the lease writes (facts: RQ 3.0).

RQ's SimpleWorker renews nothing while a job runs, so a dead worker's request would wait for its whole timeout; it
commits results of jobs that run elsewhere by then; and it interrupts with SIGALRM.
"""

import logging
import sys
from typing import Any, cast

from redis import Redis, exceptions
from rq import SimpleWorker
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.timeouts import BaseDeathPenalty
from rq.utils import now
from rq.worker.base import WorkerStatus

from api.queue import attempts
from api.queue.access import forbids
from api.queue.elsewhere import FAILED_FIELD, Failure
from api.queue.hardening import JOB_NAME, SafeJob
from api.queue.impostors import remove_impostors
from api.queue.leases import LeaseRegistry, server_time
from api.queue.results import publish
from api.transitions import about
from worker.job import GenerationJob
from worker.run import Run, StopReason

logger = logging.getLogger("cidermill.worker")

WORKER_TTL_SECONDS = 20
REFUSED = "refused"
"""Why a request is handed back that the engine did not get to see: by Redis."""


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


class BookkeepingWorker(SimpleWorker):
    """Books the runs of its requests under leases of `_lease_seconds`; set by the loop that inherits it."""

    job_class = GenerationRqJob
    death_penalty_class = NoDeathPenalty
    _job: GenerationJob
    _lease_seconds: int
    _machine: str
    _execution: Execution | None = None
    _refused: str | None = None

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        return self._lease_seconds

    def set_state(self, state: Any, pipeline: Any = None) -> None:
        """RQ's, as a transaction of its own where it is part of none (api/queue/steps.py)."""
        if pipeline is not None:
            super().set_state(state, pipeline)
            return
        with self.connection.pipeline() as own:
            super().set_state(state, own)
            own.execute()

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's loop sends one after each request, and ends when this raises; what is not due is left out."""
        if pipeline is not None:
            super().heartbeat(timeout, pipeline)
        elif self.should_run_maintenance_tasks:
            self._beat(self.connection, timeout)

    def _beat(self, connection: Redis, timeout: int | None) -> None:
        try:
            with connection.pipeline() as pipeline:
                super().heartbeat(timeout, pipeline)
                pipeline.execute()
        except exceptions.RedisError as error:
            logger.warning("Redis takes no heartbeat: %s", type(error).__name__)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """Start under the lease, in one step. RQ writes without a look, and brings back what was taken away.

        Raises NotOurs.
        """
        assert isinstance(job, GenerationRqJob)
        assert self._execution is not None
        with self.connection.pipeline() as pipeline:
            job.started_job_registry.start(pipeline, self._execution, job, self.name)
            self.heartbeat(self._lease_seconds, pipeline=pipeline)
            if not pipeline.execute()[0]:
                raise NotOurs

    def _renew(self, connection: Redis, job: Job, execution: Execution) -> bool:
        """On the pulse's thread. RQ's maintain_heartbeats would bring back what was taken away."""
        self._beat(connection, WORKER_TTL_SECONDS + 60)
        registry = cast(LeaseRegistry, job.started_job_registry)
        return registry.renew(connection, execution, self._lease_seconds)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """RQ also writes a heartbeat here, which would bring a deleted job back to life."""
        job.ended_at = now()

    def handle_job_success(self, job: Job, queue: Queue, started_job_registry: Any, execution: Execution) -> None:
        assert isinstance(job, GenerationRqJob)
        if job.run is not None and job.run.stopped_by in (StopReason.HAND_BACK, StopReason.FAILED):
            if self._holds(job, execution):
                self._give_up(job, queue, execution, job.run)
            return
        self._end(job, execution)

    def _end(self, job: Job, execution: Execution) -> None:
        """Book a request whose end was told, or that nobody wants.

        One that was lost, and of which nothing was told, is another worker's, or will be.
        """
        assert isinstance(job, GenerationRqJob)
        told = job.run is None or job.run.told
        lost = job.run is not None and job.run.lease_lost and not told
        with self.connection.pipeline() as pipeline:
            if not lost:
                job.started_job_registry.end(pipeline, execution, job, told=told)
            pipeline.srem(self.executions_key, execution.composite_key)
            self.set_state(WorkerStatus.IDLE, pipeline=pipeline)
            held = pipeline.execute()[0]
        self.executions.pop(execution.id, None)
        if not held and not lost:
            self._note_loss(job)

    def handle_job_failure(
        self,
        job: Job,
        queue: Queue,
        started_job_registry: Any = None,
        exc_string: str = "",
        execution: Execution | None = None,
    ) -> None:
        """What Redis refused, or was not there for, is told to the loop: the request is not to blame."""
        if execution is None:
            return
        assert isinstance(job, GenerationRqJob)
        error = sys.exc_info()[1]
        if isinstance(error, NotOurs):
            self._let_go(job, execution)
        elif isinstance(error, exceptions.RedisError):
            self.executions.pop(execution.id, None)
            raise error
        elif job.run is not None and job.run.told:
            self._end(job, execution)
        elif self._holds(job, execution):
            super().handle_job_failure(job, queue, started_job_registry, exc_string, execution)

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """RQ logs the arguments and the message, which is to say the prompt."""
        if exc_info[0] is NotOurs:
            logger.info("not_taken", extra=about(job.id, self.name))
            return
        logger.error("request %s could not be run: %s", job.id, getattr(exc_info[0], "__name__", "unknown"))

    def _note_refusal(self, error: exceptions.ResponseError, when: str) -> None:
        """Redis is full, or forbids something, which it will do again: then the worker stops."""
        logger.error("Redis refused something while %s: %s", when, _reason(error))
        if forbids(error):
            self._refused = _reason(error)
        elif of_wrong_type(error):
            remove_impostors(self.connection, self.queue_names())

    def _holds(self, job: Job, execution: Execution) -> bool:
        """Whether the lease is still ours. If not, the request runs elsewhere and its books are not ours to write.

        The check and the commit are not one transaction; that a result counts once is the ledger's doing.
        """
        if cast(LeaseRegistry, job.started_job_registry).holds(execution):
            return True
        self._note_loss(job)
        self.executions.pop(execution.id, None)
        self.connection.srem(self.executions_key, execution.composite_key)
        return False

    def _note_loss(self, job: Job) -> None:
        if isinstance(job, GenerationRqJob) and job.run is not None:
            job.run.lost()

    def _give_up(self, job: Job, queue: Queue, execution: Execution, run: Run) -> None:
        """Put the request at the head of its queue. A failure counts as an attempt, and its machine is noted."""
        notice = self._job.given_up(run)
        failure = Failure(server_time(self.connection), self._machine) if run.failed_with else None

        def write(pipeline: Any) -> None:
            # A deletion first: a server that is full lets on what has begun to write. The notice last: where it is
            # forbidden, the rest is done.
            execution.delete(job=job, pipeline=pipeline)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            queue.push_job_id(job.id, pipeline=pipeline, at_front=True)
            job.set_status(JobStatus.QUEUED, pipeline=pipeline)
            if failure is not None:
                pipeline.hset(job.key, FAILED_FIELD, failure.written())
            elif run.attempt:
                attempts.take_back(pipeline, job.id)
            if notice is not None:
                publish(pipeline, notice)

        registry = cast(LeaseRegistry, job.started_job_registry)
        if registry.while_held(execution, write):
            name, reason = ("handed_back", REFUSED) if notice is None else (notice.kind, notice.reason)
            logger.info(name, extra=about(job.id, self.name, attempt=run.attempt or None, reason=reason))
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


def of_wrong_type(error: exceptions.ResponseError) -> bool:
    return "WRONGTYPE" in str(error)
