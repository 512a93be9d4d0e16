"""RQ's in-process worker: the loop that waits for requests and takes them, one at a time (facts: RQ 3.0).

What is booked about each of them is worker/books.py's.
"""

import logging
import math
from contextlib import suppress
from typing import Any, cast

from redis import Redis, exceptions
from rq.command import parse_payload
from rq.exceptions import StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.utils import now
from rq.worker.base import WorkerStatus

from api.pacing import spread
from api.queue.connection import set_patience
from api.queue.elsewhere import Avoidance
from api.queue.impostors import remove_impostors
from api.queue.prefix_order import TakenLast
from api.queue.requests import queue_name
from api.queue.safe_queue import POLL_SECONDS, SafeQueue
from api.schemas import PRIORITIES
from api.settings import Settings
from api.transitions import about
from worker.books import WORKER_TTL_SECONDS, BookkeepingWorker, GenerationRqJob, NoDeathPenalty, of_wrong_type
from worker.job import REFUSED_SECONDS, GenerationJob
from worker.pulse import Pulse
from worker.run import Run, StopReason
from worker.shutdown import Shutdown

logger = logging.getLogger("cidermill.worker")

LONGEST_WAIT_SECONDS = 5
BEATS_TO_SETTLE = 3
"""Heartbeats, beyond a whole lease, that a restarted server gives the owners of leases before anybody ends them."""


class GenerationWorker(BookkeepingWorker):
    """Takes requests of one model, high before normal before low, one at a time."""

    queue_class: type[Queue] = SafeQueue

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
        self._machine = pulse.machine
        self._pulse = pulse
        self._shutdown_request = shutdown
        self._patience_seconds = patience_seconds
        self._current: Run | None = None
        settling = settings.lease_seconds + BEATS_TO_SETTLE * settings.heartbeat_seconds
        taken_last = TakenLast()
        avoidance = Avoidance(connection, model, pulse.machine)
        queues = [
            SafeQueue(
                queue_name(model, priority),
                connection,
                settling_seconds=settling,
                heartbeat_seconds=settings.heartbeat_seconds,
                taken_last=taken_last,
                avoids=avoidance.avoids,
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
        for queue in self.queues:
            try:
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
                found, wait = None, min(2 * wait, LONGEST_WAIT_SECONDS)
                logger.warning("Redis does not answer; trying again in about %.1f s", wait)
            except exceptions.ResponseError as error:
                found, wait = None, min(2 * wait, LONGEST_WAIT_SECONDS)
                self._note_refusal(error, f"a request was looked for; trying again in about {wait:.1f} s")
            if self._refused is not None:
                logger.error("%s; cidermill redis-check --role worker says what is missing", self._refused)
                raise StopRequested
            if found is not None:
                set_patience(self.connection, self._patience_seconds)
                return found
            self._shutdown_request.wait(spread(wait))
        raise StopRequested

    def _look(self) -> tuple[Job, Queue] | None:
        if self.get_state() != WorkerStatus.IDLE:
            self.set_state(WorkerStatus.IDLE)
        if self.should_run_maintenance_tasks:
            self.heartbeat()
            self.run_maintenance_tasks()
            self._pulse.duty.look(self.connection)  # the death that it has just noted may put this machine out
        if not self._pulse.duty.takes_requests:
            return None
        found = SafeQueue.dequeue_any(self.queues, None, self.connection, job_class=GenerationRqJob)
        if found is not None:
            found[0].redis_server_version = self.get_redis_server_version()  # type: ignore[no-untyped-call]
        return found

    # One request: its lease, its run.

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a request under a lease that the pulse renews."""
        assert isinstance(job, GenerationRqJob)
        try:
            execution = self._execution = self.prepare_execution(job)
            run = self._run_of(job, execution)
            logger.info("taken", extra=about(job.id, self.name))
            job.job, job.run, self._current = self._job, run, run
            self._pulse.watch(run, lambda pulse: self._renew(pulse, job, execution))
            try:
                self.perform_job(job, queue, execution)
            finally:
                self._pulse.unwatch()
                self._pulse.describe(completed=self._job.completed)
                self._current = None
            if run.answered:
                self._pulse.duty.answered(self.connection)
            if not self._shutdown_request.requested:
                self._job.upkeep()
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            logger.error("Redis went away while request %s was booked", job.id)
            self._await_redis()
            self._return(job, queue)
        except exceptions.ResponseError as error:
            self._note_refusal(error, f"request {job.id} was booked")
            self._return(job, queue)

    def _return(self, job: GenerationRqJob, queue: Queue) -> None:
        """Give a request up that nothing came of, for as long as Redis does not take that; a worker that has to stop
        tries once, then the lease decides, as it does where a key of the request itself is of a wrong type."""
        if job.run is None or not job.run.to_be_given_up:
            return
        assert self._execution is not None
        left, mended = True, False
        while left:
            try:
                self._give_up(job, queue, self._execution, job.run)
                left = False
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                logger.warning("Redis does not answer; request %s waits to be handed back", job.id)
            except exceptions.ResponseError as error:
                self._note_refusal(error, f"request {job.id} was handed back")
                left, mended = not (mended and of_wrong_type(error)), of_wrong_type(error)
            # Also after it was taken: what was refused once may be refused again.
            if self._shutdown_request.wait(spread(REFUSED_SECONDS)) or self._refused is not None:
                return

    def _run_of(self, job: GenerationRqJob, execution: Execution) -> Run:
        registry = job.started_job_registry

        def still_ours() -> bool:
            if run.silence < self._lease_seconds / 2:  # nobody ends a lease so early
                return True
            set_patience(self.connection, 0)  # an outage is waited out when the answer is told
            try:
                return registry.is_wanted(execution, job)
            finally:
                set_patience(self.connection, self._patience_seconds)

        run = Run(
            job.id,
            cast(int, job.timeout),
            self._shutdown_request.hand_back_due,
            worker=self.name,
            tell_start=lambda event: registry.tell_start(execution, job, event),
            still_ours=still_ours,
            failed_before_on=job.failure.machine if job.failure else None,
            execution_key=execution.key,
        )
        return run

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
        while not self._shutdown_request.wait(spread(POLL_SECONDS)):
            try:
                self.connection.ping()
                return
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                continue
        raise StopRequested
