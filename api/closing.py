"""How what is open of a batch ends before it was answered: cancelled by somebody, or expired at its deadline.

The ledger decides, so that whatever a worker says later is late. Then Redis forgets what waits, and its mark on the
batch makes workers stop what runs. A crash in between leaves entries in Redis that nobody runs: an overdue one carries
its deadline, and each is dropped by the worker that takes it. A large batch ends in many steps, and what is recorded
between two of them stays. Who cancels sets the mark before the first: everything stops at once. Where the command is
cut short, the recorder goes on.
"""

import logging
import time
from collections.abc import Iterable

from api.identity import index_of
from api.ledger.ledger import Ledger
from api.queue.requests import RequestQueue

logger = logging.getLogger("cidermill.recorder")


def cancel(ledger: Ledger, queue: RequestQueue | None, batch_id: str) -> None:
    """Cancel what is open of a batch, and tell the workers.

    queue: None where there is no Redis. Raises NotFoundError, LedgerError, redis.exceptions.RedisError.
    """
    ledger.begin_cancelling(batch_id)
    if queue is not None:
        queue.stop(batch_id)
    while some := ledger.cancel(batch_id):
        if queue is not None:
            withdraw(queue, batch_id, some)


def go_on_cancelling(ledger: Ledger, queue: RequestQueue) -> list[str]:
    """Cancel some of what is open of batches that are being cancelled; returns the ids, none after the last.

    Who cancels does the same at the same time, unless they have died. Raises LedgerError, redis.exceptions.RedisError.
    """
    for batch_id in ledger.cancelling():
        queue.stop(batch_id)
        if some := ledger.cancel(batch_id):
            logger.info("batch %s is being cancelled, and %d of its requests with it", batch_id, len(some))
            withdraw(queue, batch_id, some)
            return some
    return []


def expire_overdue(ledger: Ledger, queue: RequestQueue) -> list[str]:
    """Let what is open of batches past their deadline expire, a step at a time; returns the ids, none after the last.

    The clock of this machine, which has the ledger, decides. What is answered already, on the results stream, is left
    to be recorded, so nothing expires while Redis is away. Raises LedgerError, redis.exceptions.RedisError.
    """
    overdue = ledger.overdue(time.time())
    answered = queue.answered() if overdue else set()
    for batch_id in overdue:
        if some := ledger.expire(batch_id, spared=answered):
            logger.warning("batch %s has expired, and %d of its requests with it", batch_id, len(some))
            withdraw(queue, batch_id, some)
            return some
    return []


def withdraw(queue: RequestQueue, batch_id: str, request_ids: Iterable[str]) -> None:
    """Take requests that the ledger has closed out of Redis, and stop those that run.

    Of a batch that was placed in this Redis, those beyond its mark are not there; where the mark was moved back, some
    are, and are dropped by the worker that takes them. Raises redis.exceptions.RedisError.
    """
    mark = queue.marks([batch_id]).get(batch_id)
    there = [request_id for request_id in request_ids if mark is None or index_of(request_id) < mark.below]
    queue.withdraw(there, batch_id=batch_id)
