"""Whether a worker takes requests: what an operator ordered, and what became of the workers of its machine.

              pause                       three deaths in a row on its machine
 working <────────────> paused    working <──────────────────────────────────> out
             resume                        resume, or workers that prove alive

 any of them ── drain ──> draining: the running request is finished, and the process ends

Both are read from Redis on the pulse, so within about a second. Whatever else is there is reported and means nothing.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, cast

from redis import Redis, exceptions

from api.queue import deaths, orders
from api.queue.deaths import Row
from api.queue.orders import Order
from api.schemas import WorkerState
from worker.shutdown import Shutdown

logger = logging.getLogger("cidermill.worker")


class Duty:
    """Read by the loop that takes requests; kept by the pulse, and by the loop when it has ended leases itself.

    host: the machine, as WorkerInfo has it. deaths_in_a_row: after which it takes itself out; 0: never.
    """

    def __init__(self, name: str, host: str, deaths_in_a_row: int, shutdown: Shutdown) -> None:
        self._name, self._host = name, host
        self._limit = deaths_in_a_row
        self._shutdown = shutdown
        self._order = Order.WORK
        self._row = Row()
        self._out = False
        self._looked = False
        self._looking = threading.Lock()
        self._reported: str | None = None

    @property
    def takes_requests(self) -> bool:
        """Not before the first look: the machine of a worker that starts may be out."""
        return self._looked and self._order is Order.WORK and not self._out

    def state(self, *, loaded: bool, busy: bool) -> WorkerState:
        """For WorkerInfo. loaded: whether the engine is. busy: whether a request runs."""
        if self._shutdown.requested:
            return "draining" if self._shutdown.draining else "stopping"
        if not loaded:
            return "starting"
        if busy:
            return "pausing" if self._order is Order.PAUSE else "busy"
        if self._out:
            return "out"
        return "paused" if self._order is Order.PAUSE else "idle"

    def look(self, connection: Redis) -> None:
        """Read the order and the machine's row, and go by them. Raises Redis's errors of the connection alone."""
        with self._looking, connection.pipeline(transaction=False) as pipeline:
            orders.ask(pipeline, self._name)
            deaths.ask(pipeline, self._host)
            if self._out:
                pipeline.expire(deaths.row_key(self._host), deaths.KEEP_SECONDS)
            order, row, *_ = cast(Sequence[Any], pipeline.execute(raise_on_error=False))
            self._read_order(order)
            self._read_row(connection, row)
            self._looked = True

    def answered(self, connection: Redis) -> None:
        """A request was answered here: the deaths before it were not in a row with what comes. One that is out stays
        so."""
        if self._row.length and not self._out:
            deaths.end_row(connection, self._host, self._row)

    def _read_order(self, answer: bytes | exceptions.RedisError) -> None:
        if isinstance(answer, exceptions.RedisError):
            self._report(f"{orders.order_key(self._name)} cannot be read: {answer}")
            return
        try:
            order = orders.parse(answer)
        except ValueError:
            self._report(f"{orders.order_key(self._name)} holds no order")
            return
        self._reported = None
        if order is None or order is self._order or self._shutdown.requested:
            return
        logger.warning("ordered to %s", order.value)
        self._order = order
        if order is Order.DRAIN:
            self._shutdown.drain()

    def _report(self, problem: str) -> None:
        """Once, and not on every pulse."""
        if problem != self._reported:
            logger.error("%s; the worker goes on as before", problem)
        self._reported = problem

    def _read_row(self, connection: Redis, answer: object) -> None:
        if isinstance(answer, exceptions.ResponseError) and "WRONGTYPE" in str(answer):
            logger.error("key %s was no list of deaths: forged; deleted", deaths.row_key(self._host))
            deaths.end_rows(connection, [self._host])
        self._row = self._without_own(connection, deaths.parse(answer))
        out = 0 < self._limit <= self._row.in_a_row
        if out and not self._out:
            died = ", ".join(f"{death.worker} on {death.request_id}" for death in self._row.deaths)
            logger.error(
                "machine %s takes no more requests: %d workers in a row died on it (%s); when it is well again: "
                "cidermill worker resume %s",
                *(self._host, len(self._row.deaths), died, self._name),
            )
        elif self._out and not out:
            logger.warning("machine %s takes requests again", self._host)
        self._out = out

    def _without_own(self, connection: Redis, row: Row) -> Row:
        """The row without the deaths of this worker, which lives and takes them back."""
        own = [death for death in row.deaths if death.worker == self._name]
        withdrawn = sum(deaths.withdraw(connection, self._host, death) for death in own)
        if withdrawn:
            logger.warning(
                "this worker was taken for dead on %s, and lives: that does not count against machine %s",
                *(", ".join(death.request_id for death in own), self._host),
            )
        return Row(tuple(death for death in row.deaths if death not in own), row.length - withdrawn)
