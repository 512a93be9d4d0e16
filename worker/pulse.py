"""A worker's signs of life, on a thread and a connection of their own: presence, leases, cancellations, orders.

MLX releases the interpreter lock while it evaluates, so the pulse goes on through a long prefill.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import Redis, exceptions

from api.pacing import spread
from api.queue.impostors import remove_impostors
from api.queue.leases import LONGEST_TICK_SECONDS
from api.queue.presence import announce, withdraw
from api.queue.requests import cancel_key
from api.schemas import WorkerInfo
from worker.duty import Duty
from worker.run import Run, StopReason

logger = logging.getLogger("cidermill.worker")

MISSED_BEATS = 3
"""Heartbeats that a worker may miss before it vanishes from the list of live workers."""

Renewal = Callable[[Redis], bool]


class Pulse(threading.Thread):
    """Announces the worker about once a second and renews the lease of its run every `heartbeat_seconds`.

    connection: used by this thread alone, with little patience, so that a beat is late but never stuck. duty: kept
    up to date here.
    """

    def __init__(self, connection: Redis, info: WorkerInfo, duty: Duty, heartbeat_seconds: float) -> None:
        super().__init__(name="pulse", daemon=True)
        self._connection = connection
        self._info = info
        self.duty = duty
        self._heartbeat_seconds = heartbeat_seconds
        self._tick_seconds = min(LONGEST_TICK_SECONDS, heartbeat_seconds)
        self._watched: tuple[Run, Renewal] | None = None
        self._next_beat = 0.0
        self._ended = threading.Event()
        self._trouble: str | None = None

    @property
    def machine(self) -> str:
        return self._info.host

    def describe(self, **changes: Any) -> None:
        """Change what the worker tells about itself (fields of WorkerInfo)."""
        self._info = self._info.model_copy(update=changes)

    def watch(self, run: Run, renew: Renewal) -> None:
        """Keep the lease of `run`; renew returns False when it was taken away."""
        self._next_beat = time.monotonic() + self._heartbeat_seconds
        self._watched = run, renew

    def unwatch(self) -> None:
        """The run is over."""
        watched, self._watched = self._watched, None
        if watched is not None:
            self.describe(decode_tps=watched[0].decode_tps)

    def end(self) -> None:
        """Withdraw the worker, stop the thread and wait for it."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._beat()
                self._trouble = None
            except Exception as error:  # noqa: BLE001 - the lease of its run would end with this thread
                self._report(type(error).__name__)
                if isinstance(error, exceptions.RedisError) and "WRONGTYPE" in str(error):
                    with suppress(exceptions.RedisError):
                        remove_impostors(self._connection, [])
            self._ended.wait(spread(self._tick_seconds))
        with suppress(exceptions.RedisError):  # else its key expires
            withdraw(self._connection, self._info.name)

    def _report(self, trouble: str) -> None:
        """Once, and not on every beat."""
        if trouble != self._trouble:
            logger.warning("no heartbeat: %s; trying on", trouble)
        self._trouble = trouble

    def _beat(self) -> None:
        watched = self._watched
        if watched is not None:
            run, renew = watched
            if time.monotonic() >= self._next_beat:
                if renew(self._connection):
                    run.renewed()
                elif not run.told:  # else its own worker has ended the lease
                    run.lost()
                self._next_beat = time.monotonic() + self._heartbeat_seconds
            if self._connection.exists(cancel_key(run.batch_id)):
                run.stop(StopReason.CANCELLED)
        self.duty.look(self._connection)
        ttl = MISSED_BEATS * max(self._heartbeat_seconds, LONGEST_TICK_SECONDS)
        announce(self._connection, self._now(watched[0] if watched else None), ttl)

    def _now(self, run: Run | None) -> WorkerInfo:
        return self._info.model_copy(
            update={
                "state": self.duty.state(loaded=self._info.state != "starting", busy=run is not None),
                "request_id": run.request_id if run else None,
                "tokens": run.tokens if run else 0,
                "tail": run.tail if run else "",
                "decode_tps": run.decode_tps if run else self._info.decode_tps,
                "seen_at": time.time(),
            }
        )
