"""What Redis has lost of the batches in progress goes back on the queue, by the recorder of their ledger.

The ledger remembers into which Redis a batch was put, by its address. Where its mark (api/window.py) is gone from
there, the server has forgotten all it had. A batch that was put into another Redis, or into none, is left to whoever
resumes it: a recorder that was started for a wrong server takes nothing there. It says so again and again, since the
same server may go by two addresses.
"""

import logging
import time

from api.ledger.ledger import Ledger
from api.ledger.records import RunningBatch
from api.queue.requests import RequestQueue
from api.window import rewind

logger = logging.getLogger("cidermill.recorder")

REMINDER_SECONDS = 600.0


class Reminders:
    """What a recorder has said of batches in progress that its Redis does not know and that were not placed in it."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def say(self, ledger: Ledger, queue: RequestQueue) -> None:
        """Say what to do about each of them, unless that was said less than REMINDER_SECONDS ago."""
        strange = [batch for batch in ledger.running_batches() if batch.placed_in != queue.address]
        marks = queue.marks([batch.id for batch in strange])
        now = time.monotonic()
        said = {batch_id: at for batch_id, at in self._said_at.items() if now - at < REMINDER_SECONDS}
        for batch in strange:
            if batch.id not in marks and batch.id not in said:
                said[batch.id] = now
                _say_where(batch, queue.address)
        self._said_at = said


def reconcile(ledger: Ledger, queue: RequestQueue) -> int:
    """Let what this Redis has lost of the batches in progress that were placed in it come again; returns how many.

    As far as their marks go. Of a batch whose mark is lost, too, everything is to come again, by `top_up`. What the
    ledger has closed, and a server that was set back holds again, is taken out.
    """
    if closed := ledger.final(queue.held()):
        logger.info("Redis held %d requests that are closed in the ledger: they are taken out", len(closed))
        queue.forget(closed)
    batches = ledger.running_batches()
    marks = queue.marks([batch.id for batch in batches])
    total = 0
    for batch in batches:
        if batch.id not in marks and batch.placed_in != queue.address:
            continue
        missing = rewind(ledger, queue, batch)
        total += missing
        if batch.id not in marks:
            logger.warning("Redis does not know batch %s any more: what is open of it is queued again", batch.id)
        elif missing:
            logger.warning("Redis had lost %d requests of batch %s: they are queued again", missing, batch.id)
    return total


def _say_where(batch: RunningBatch, here: str) -> None:
    if batch.placed_in is None:  # perhaps its command is about to place it
        words = "batch %s was placed in no Redis yet; to have it in this one, at %s: cidermill resume %s"
        logger.info(words, batch.id, here, batch.id)
        return
    logger.warning(
        "batch %s was placed in Redis at %s; this one, at %s, does not know it, and nothing of it is put back here. "
        "To have it here, or if this is the same Redis by another address: cidermill resume %s, with the URL used here",
        *(batch.id, batch.placed_in, here, batch.id),
    )


def forgotten(ledger: Ledger, queue: RequestQueue) -> bool:
    """Whether this Redis does not know a batch in progress that was placed in it."""
    placed = [batch.id for batch in ledger.running_batches() if batch.placed_in == queue.address]
    return len(queue.marks(placed)) < len(placed)
