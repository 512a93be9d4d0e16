"""The recorder: events from the results stream into the ledger, open requests to the queue, and its housekeeping.

An entry is acknowledged after its transaction is on the disk. Whatever happens before that, the entry comes again, and
the ledger takes it once. So the recorder may die anywhere, run twice, and lose Redis or the disk's space for a while.
"""

import hashlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from redis import Redis

from api.closing import expire_overdue, go_on_cancelling
from api.duties import PASSING_ERRORS, Duty, do_all, perform
from api.errors import UnstorableError
from api.ledger.ledger import Ledger
from api.queue.impostors import remove_impostors
from api.queue.requests import RequestQueue
from api.queue.results import GROUP, ResultsReader
from api.reconciling import Reminders, forgotten, reconcile
from api.refused import record_apart
from api.schemas import RequestEvent
from api.set_aside import give_up
from api.window import top_up

logger = logging.getLogger("cidermill.recorder")

HOUSEKEEPING_SECONDS = 5.0
EXPIRY_SECONDS = 1.0
CANCELLING_SECONDS = 1.0
RECONCILING_SECONDS = 1.0
RECONCILING_AGAIN_SECONDS = 300.0
REMINDING_SECONDS = 5.0
TOP_UP_SECONDS = 1.0
"""Between two looks at windows that were full; one that was not is topped up again after the next step."""


def reader_of(ledger: Ledger, connection: Redis, consumer: str) -> ResultsReader:
    """The reader of a ledger: its group is named after where the ledger lies.

    A ledger that moves gets a new group, which starts over with what is on the stream; that does no harm.
    """
    place = f"{socket.gethostname()}:{ledger.path.resolve()}"
    remove_impostors(connection, [])
    group = f"{GROUP}-{hashlib.sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
    return ResultsReader(connection, consumer, group)


class Recorder:
    """Takes events home. on_finished: called with each request id that has become final, after the commit.

    It is not called for what expires, or is cancelled, with its batch: that can be a million at once.
    """

    def __init__(
        self,
        ledger: Ledger,
        queue: RequestQueue,
        reader: ResultsReader,
        *,
        on_finished: Callable[[str], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._reader = reader
        self._on_finished = on_finished or (lambda _: None)
        self._reconciled_in: str | None = None
        self._reconcile_again_at = -math.inf
        self._reminders = Reminders()

    def step(self, block_ms: int = 1000) -> int:
        """Read once, record in one transaction, acknowledge; returns the number of entries.

        Raises redis.exceptions.RedisError, LedgerError, StorageError; what was read then comes again.
        """
        entries = self._reader.read(block_ms=block_ms)
        for entry_id, event in entries:
            if event is None:
                logger.error("entry %s of the results stream is not an event; it is dropped", entry_id)
        known = self._ledger.known({event.request_id for _, event in entries if event is not None})
        foreign = {entry_id for entry_id, event in entries if event is not None and event.request_id not in known}
        events = [event for entry_id, event in entries if event is not None and entry_id not in foreign]
        finished = self._record(events) if events else []
        for request_id in finished:
            self._on_finished(request_id)
        self._reader.acknowledge([entry_id for entry_id, _ in entries if entry_id not in foreign])
        self._reader.pass_over(sorted(foreign))
        return len(entries)

    def housekeeping(self) -> None:
        """For the models of open batches: bring back requests of dead workers, fail those that were set aside."""
        models = self._ledger.open_models()
        steps = (self._queue.maintain, self._give_up)
        do_all(partial(step, model) for model in models for step in steps)

    def reconcile(self) -> None:
        """Put back what Redis has lost: at first, after each start of Redis, when a batch or the results are gone.

        And now and then, for whatever nobody has thought of.
        """
        run, due = self._queue.run_of_server(), time.monotonic() > self._reconcile_again_at
        if due or run != self._reconciled_in or self._reader.started_over or forgotten(self._ledger, self._queue):
            self._reconciled_in, self._reader.started_over = None, False
        if self._reconciled_in is None:
            for model in self._ledger.open_models():
                self._give_up(model)  # they are open in the ledger, and are not to run again
            reconcile(self._ledger, self._queue)
            self._reconciled_in = run
            self._reconcile_again_at = time.monotonic() + RECONCILING_AGAIN_SECONDS

    def recount(self) -> None:
        """Mend the counts of open batches, once: a batch that is counted wrong would never be closed."""
        for batch_id, added in self._ledger.recount().items():
            changes = ", ".join(f"{change:+d} {state}" for state, change in added.items())
            logger.warning(
                "the counts of batch %s were wrong, as a process of an older version leaves them; mended: %s",
                *(batch_id, changes),
            )

    def run(self, stop: threading.Event) -> None:
        """Record and keep house until `stop`, waiting out errors that pass."""
        duties = [
            Duty("counting", self.recount, math.inf),
            Duty("recording", self.step, 0.0),
            Duty("expiry", lambda: expire_overdue(self._ledger, self._queue), EXPIRY_SECONDS),
            Duty("cancelling", lambda: go_on_cancelling(self._ledger, self._queue), CANCELLING_SECONDS),
            Duty("reconciling", self.reconcile, RECONCILING_SECONDS),
            Duty("reminding", lambda: self._reminders.say(self._ledger, self._queue), REMINDING_SECONDS),
            Duty("housekeeping", self.housekeeping, HOUSEKEEPING_SECONDS),
            Duty("topping up", lambda: top_up(self._ledger, self._queue), TOP_UP_SECONDS),
        ]
        perform(duties, stop, logger, self._mend)

    def _give_up(self, model: str) -> None:
        for request_id in give_up(self._ledger, self._queue, model):
            self._on_finished(request_id)

    def _record(self, events: Sequence[RequestEvent]) -> list[str]:
        try:
            return self._ledger.record(events)
        except UnstorableError:
            return record_apart(self._ledger, events)

    def _mend(self, error: Exception) -> None:
        if "WRONGTYPE" in str(error):
            with suppress(*PASSING_ERRORS):
                batches = [batch.id for batch in self._ledger.running_batches()]
                self._queue.remove_impostors(self._ledger.open_models(), batches)
