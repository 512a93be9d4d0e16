"""What Redis has lost of the batches in progress goes back on the queue, by the recorder of their ledger.

The ledger remembers into which Redis a batch was put, by its address. Where its mark (api/window.py) is gone from
there, the server has forgotten all it had. A batch that was put into another Redis, or into none, is left to whoever
resumes it: a recorder that was started for a wrong server takes nothing there.
"""

import logging

from api.ledger.ledger import Ledger
from api.queue.requests import RequestQueue
from api.window import put_back

logger = logging.getLogger("cidermill.recorder")


def reconcile(ledger: Ledger, queue: RequestQueue) -> int:
    """Put back what this Redis has lost of the batches in progress that were placed in it; returns how many requests.

    As far as their marks go. Of a batch whose mark is lost, too, everything is to come again, by `top_up`.
    """
    batches = ledger.running_batches()
    marks = queue.marks([batch.id for batch in batches])
    total = 0
    for batch in batches:
        if batch.id not in marks and batch.placed_in != queue.address:
            there = f"in Redis at {batch.placed_in}" if batch.placed_in else "in no Redis yet"
            logger.info(
                "batch %s was placed %s; to have it in this one, at %s: cidermill resume %s",
                *(batch.id, there, queue.address, batch.id),
            )
            continue
        _, added = put_back(ledger, queue, batch, lambda _: None)
        total += added
        if batch.id not in marks:
            logger.warning("Redis does not know batch %s any more: what is open of it is queued again", batch.id)
        elif added:
            logger.warning("Redis had lost %d requests of batch %s: they are queued again", added, batch.id)
    return total


def forgotten(ledger: Ledger, queue: RequestQueue) -> bool:
    """Whether this Redis does not know a batch in progress that was placed in it."""
    placed = [batch.id for batch in ledger.running_batches() if batch.placed_in == queue.address]
    return len(queue.marks(placed)) < len(placed)
