"""A worker process from start to stop: one engine, one model, one request at a time."""

import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable

from redis import Redis, exceptions

from api.errors import QueueError
from api.pacing import spread
from api.queue.connection import connect
from api.queue.impostors import remove_impostors
from api.queue.requests import RequestQueue, queue_name
from api.queue.steps import StepRedis, refused_as_full
from api.schemas import PRIORITIES, WorkerInfo
from api.settings import Settings
from worker.duty import Duty
from worker.job import GenerationEngine, GenerationJob
from worker.outbox import Outbox, deliver_leftovers
from worker.pulse import Pulse
from worker.rq_worker import GenerationWorker
from worker.shutdown import Shutdown

logger = logging.getLogger("cidermill.worker")

GRACE_SECONDS = 20.0
"""How long the first signal lets the running request go on. A service manager must wait longer than this."""
PATIENCE_SECONDS = 120.0
ROOM_SECONDS = 5.0
"""Between two looks whether a full Redis has room again."""


def serve(
    settings: Settings,
    engine_factory: Callable[[], GenerationEngine],
    *,
    name: str | None = None,
    host: str | None = None,
    stop_with_parent: bool = False,
    grace_seconds: float = GRACE_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    """Work on the queues of `settings.model` until a signal; returns the number of requests completed.

    engine_factory: called once, after Redis has answered. stop_with_parent: the end of standard input counts as
    SIGTERM. host: the machine's name, if not the operating system's. patience_seconds: how long one command to Redis is
    tried again through an outage.
    Raises QueueError (no Redis, or the loop ended unasked) and whatever the factory raises.
    """
    secret = settings.effective_redis_url
    if secret is None:
        raise QueueError("a worker needs the URL of a Redis; give --redis or set CIDERMILL_REDIS_URL")
    url = secret.get_secret_value()
    shutdown = _listen(grace_seconds, stop_with_parent)
    connection = connect(url, patience_seconds=patience_seconds, client=StepRedis)
    worker = name or unique_name()
    info = _starting(worker, settings.model, host or socket.gethostname())
    duty = Duty(worker, info.host, settings.deaths_in_a_row, shutdown)
    pulse = Pulse(connect(url, patience_seconds=0, client=StepRedis), info, duty, settings.heartbeat_seconds)
    outbox = Outbox(settings.data_dir / f"outbox-{worker}.sqlite3")
    pulse.start()
    engine: GenerationEngine | None = None
    try:
        remove_impostors(connection, [queue_name(settings.model, priority) for priority in PRIORITIES])
        while not _bring_in_leftovers(settings, connection):
            logger.warning("Redis is full and takes no results of earlier workers; waiting until it has room")
            if shutdown.wait(spread(ROOM_SECONDS)):
                return 0
        engine = engine_factory()
        pulse.describe(state="idle", **_described(engine))
        job = GenerationJob(engine, connection, outbox, worker, lambda: not shutdown.requested or shutdown.draining)
        if not shutdown.requested:  # while the engine was loading
            loop = GenerationWorker(
                settings.model,
                name=worker,
                connection=connection,
                settings=settings,
                job=job,
                pulse=pulse,
                shutdown=shutdown,
                patience_seconds=patience_seconds,
            )
            loop.work(logging_level="WARNING")
        if not shutdown.requested:
            raise QueueError(f"worker {worker} stopped working on its own; the lines above say why")
        return job.completed
    finally:
        pulse.end()
        outbox.close()
        if engine is not None:
            engine.close()


def unique_name() -> str:
    """Host, process and a random part: a name is never used twice, so that a dead namesake is in nobody's way."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0]) or "worker"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


def _listen(grace_seconds: float, stop_with_parent: bool) -> Shutdown:
    shutdown = Shutdown(grace_seconds)
    if threading.current_thread() is threading.main_thread():
        shutdown.on_signals()
    if stop_with_parent:
        shutdown.on_end_of(sys.stdin.fileno())
    return shutdown


def _starting(worker: str, model: str, host: str) -> WorkerInfo:
    return WorkerInfo(
        name=worker,
        model=model,
        state="starting",
        host=host,
        pid=os.getpid(),
        chip="",
        drafter="",
        verification="",
        seen_at=time.time(),
    )


def _described(engine: GenerationEngine) -> dict[str, str]:
    found = engine.description
    return {
        "chip": found.chip,
        "drafter": found.drafter,
        "verification": found.verification,
        "kernels": found.kernels,
    }


def _bring_in_leftovers(settings: Settings, connection: Redis) -> bool:
    """Deliver results of dead workers of this machine, and spare others the same requests once more. Whether Redis had
    room for them all; what it took is not sent again."""
    try:
        delivered = deliver_leftovers(settings.data_dir, connection)
    except exceptions.ResponseError as error:
        if refused_as_full(error):
            return False
        raise
    if delivered:
        logger.warning("delivered %d results that an earlier worker left behind", len(delivered))
        queue = RequestQueue(
            connection,
            max_attempts=settings.max_attempts,
            request_timeout_seconds=settings.request_timeout_seconds,
        )
        queue.forget(delivered)
    return True
