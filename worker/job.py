"""The job: a queue entry's payload in, events on the results stream out.

The result is on the stream, or at least on this machine's disk, before RQ hears that the job is done.
"""

import logging
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, Protocol

from pydantic import ValidationError
from redis import Redis, exceptions

from api.errors import StorageError
from api.pacing import spread
from api.queue import attempts
from api.queue.access import forbids
from api.queue.deadlines import seconds_left
from api.queue.impostors import remove_impostors
from api.queue.requests import cancel_key
from api.queue.results import publish_result
from api.schemas import GenerationRequest, GenerationResult, JobStats, RequestError, RequestEvent
from api.transitions import about
from worker.outbox import Outbox
from worker.retry import final_error, kind_of, tries_again
from worker.run import Run, StopReason

logger = logging.getLogger("cidermill.worker")

REFUSED_SECONDS = 1.0
"""Between two tries of a Redis that is full."""


class EngineDescription(Protocol):
    """What an engine is, for `cidermill status`."""

    @property
    def model(self) -> str: ...
    @property
    def chip(self) -> str: ...
    @property
    def drafter(self) -> str: ...
    @property
    def verification(self) -> str: ...
    @property
    def kernels(self) -> str: ...


class GenerationEngine(Protocol):
    """What runs a request. on_tokens: new text, completion tokens so far. should_stop: asked once a pass; when it is
    true, the result so far comes back as a cancelled one; raises MemoryError where memory runs out. upkeep: what can
    wait until a request is answered. close: at the end of the process."""

    @property
    def description(self) -> EngineDescription: ...

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]: ...
    def upkeep(self) -> None: ...
    def close(self) -> None: ...


class GenerationJob:
    """Runs payloads on one engine. keep_trying: whether to wait for Redis any longer when it does not take a result."""

    def __init__(
        self,
        engine: GenerationEngine,
        connection: Redis,
        outbox: Outbox,
        worker: str,
        keep_trying: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._connection = connection
        self._outbox = outbox
        self._worker = worker
        self._keep_trying = keep_trying
        self.completed = 0

    def perform(self, run: Run, *arguments: object) -> None:
        """Run one attempt; `run.stopped_by` says afterwards what RQ's books should make of it.

        Raises Redis's errors: nothing was generated, or the result is in the outbox and the worker has to stop.
        """
        with self._connection.pipeline() as pipeline:
            attempts.begin(pipeline, run.request_id, run.execution_key)
            pipeline.exists(cancel_key(run.batch_id))
            run.attempt, cancelled = pipeline.execute()
        if cancelled:
            run.stop(StopReason.CANCELLED)
            logger.info("cancelled", extra=about(run.request_id, self._worker, attempt=run.attempt))
            return
        try:
            request = _parse(run.request_id, arguments)
        except _InvalidPayload as error:
            self._finish(run, _failure(run, "invalid_request", str(error), 400), None)
            return
        if request.expires_at is not None:
            run.expire_in(seconds_left(self._connection, request.expires_at))
            if run.should_stop() and run.stopped_by is StopReason.EXPIRED:
                self._bring_home(run, self._event(run, "expired"))
                return
        if not run.tell_start(self._event(run, "started")):
            run.lost()
            return
        logger.info("started", extra=about(run.request_id, self._worker, attempt=run.attempt))
        if not self._still_ours(run):  # the machine slept since it was told, and the request may be answered by now
            return
        run.begun = True
        try:
            result, stats = self._engine.generate(request, on_tokens=run.on_tokens, should_stop=run.should_stop)
        except Exception as error:  # noqa: BLE001 - the next request may well run
            self._fail(run, error)
            return
        if result.cancelled:
            if run.stopped_by in (StopReason.LEASE_LOST, StopReason.HAND_BACK):
                return
            if run.stopped_by is StopReason.EXPIRED:
                self._bring_home(run, self._event(run, "expired"))
                return
            if run.stopped_by is StopReason.DEADLINE:
                if not self._still_ours(run):  # that it was too slow here says nothing of where it runs by now
                    return
                result = _overdue(run, result)
        else:
            run.stopped_by = None  # it came to its end before it noticed
            self.completed += 1
            run.answered = result.error is None
        self._finish(run, result, stats)

    def upkeep(self) -> None:
        """After a request, when nobody waits for this worker."""
        try:
            self._engine.upkeep()
        except Exception as error:  # noqa: BLE001 - the next request may well run
            logger.error("the engine's upkeep failed: %s\n%s", type(error).__name__, _place(error))

    def given_up(self, run: Run) -> RequestEvent | None:
        """The notice that the request waits again: handed back, or requeued since the attempt failed. None where the
        engine has not had it."""
        if not run.begun:
            return None
        if run.failed_with is None:
            return self._event(run, "handed_back")
        return self._event(run, "requeued", reason=run.failed_with)

    def _fail(self, run: Run, error: Exception) -> None:
        """See worker/retry.py. Of a request that runs elsewhere by now, this machine's failure says nothing."""
        logger.error("request %s: the engine raised %s\n%s", run.request_id, type(error).__name__, _place(error))
        if not self._still_ours(run):
            run.stopped_by = StopReason.LEASE_LOST
        elif tries_again(run.failed_before_on is not None):
            run.fail(kind_of(error))
        else:
            run.stopped_by = None
            final = final_error(error, self._worker, run.failed_before_on)
            self._finish(run, GenerationResult(request_id=run.request_id, error=final), None)

    def _still_ours(self, run: Run) -> bool:
        """Whether the request is still wanted of this worker, as far as Redis tells."""
        with suppress(exceptions.RedisError):
            if not run.still_ours():
                run.lost()
        return not run.lease_lost

    def _finish(self, run: Run, result: GenerationResult, stats: JobStats | None) -> None:
        self._bring_home(run, self._event(run, "finished", result, stats))

    def _bring_home(self, run: Run, event: RequestEvent) -> None:
        """Store, then publish. One that was cut off and comes back finds that out first, and says so; its answer is
        told all the same, and the ledger takes whichever comes first."""
        stored = self._store(event)
        self._still_ours(run)
        self._deliver(event, stored)
        run.told = True
        name, facts = _ended(event)
        logger.info(name, extra=about(run.request_id, self._worker, attempt=run.attempt, **facts))

    def _store(self, event: RequestEvent) -> bool:
        """On this machine's disk; whether that took it."""
        try:
            self._outbox.store(event)
        except StorageError as error:
            logger.error("%s; it goes to Redis without that", error)
            return False
        return True

    def _deliver(self, event: RequestEvent, stored: bool) -> None:
        """Publish it, with what else is in the outbox, for as long as it takes; a worker that has to stop leaves it
        there."""
        while True:
            try:
                if not stored:
                    publish_result(self._connection, event)
                else:
                    self._outbox.deliver(self._connection)
                return
            except StorageError as error:
                logger.error("%s; %s goes to Redis without that", error, event.request_id)
                stored = False
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                where = self._outbox.path if stored else "memory"
                logger.warning("Redis takes no results; %s waits in %s", event.request_id, where)
                if not self._keep_trying():
                    raise
            except exceptions.ResponseError as error:
                if forbids(error):
                    raise
                if remove_impostors(self._connection, []):
                    continue
                logger.error("Redis refuses results: %s; %s waits", type(error).__name__, event.request_id)
                if not self._keep_trying():
                    raise
                time.sleep(spread(REFUSED_SECONDS))

    def _event(
        self,
        run: Run,
        kind: Literal["started", "handed_back", "requeued", "finished", "expired"],
        result: GenerationResult | None = None,
        stats: JobStats | None = None,
        reason: str | None = None,
    ) -> RequestEvent:
        return RequestEvent(
            kind=kind,
            request_id=run.request_id,
            worker=self._worker,
            attempt=run.attempt,
            at=time.time(),
            reason=reason,
            result=result,
            stats=stats,
        )


def _place(error: Exception) -> str:
    """Where it was raised. Its message may quote a prompt, and stays out of the log."""
    return "".join(traceback.format_tb(error.__traceback__))


class _InvalidPayload(Exception):
    """The payload is no generation request; the message names the field and quotes nothing."""


def _parse(request_id: str, arguments: tuple[object, ...]) -> GenerationRequest:
    if len(arguments) != 1:
        raise _InvalidPayload(f"the queue entry has {len(arguments)} arguments and not one request")
    try:
        request = GenerationRequest.model_validate(arguments[0])
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        raise _InvalidPayload("; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)) from None
    if request.request_id != request_id:
        raise _InvalidPayload("request_id is not the id of the queue entry")
    return request


def _failure(run: Run, code: str, message: str, status: int) -> GenerationResult:
    error = RequestError(code=code, message=message, status=status)
    return GenerationResult(request_id=run.request_id, error=error)


def _ended(event: RequestEvent) -> tuple[str, dict[str, Any]]:
    """The transition by which a worker ends a request, and what there is to tell of it."""
    result, stats = event.result, event.stats
    if result is None:
        return event.kind, {}
    facts: dict[str, Any] = {"error": result.error.code} if result.error else {"finish_reason": result.finish_reason}
    if result.usage is not None:
        facts["tokens"] = result.usage.completion_tokens
    if stats is not None:
        facts |= {"ms": round(stats.wall_ms), "tokens_per_second": stats.decode_tps and round(stats.decode_tps, 2)}
    return "cancelled" if result.cancelled else "finished", facts


def _overdue(run: Run, result: GenerationResult) -> GenerationResult:
    message = f"it ran longer than {run.timeout_seconds:g} s; raise request_timeout_seconds or lower max_tokens"
    failure = _failure(run, "request_timeout", message, 408)
    return failure.model_copy(update={"usage": result.usage, "notes": result.notes})
