"""Requests that Redis will not run again: too many workers died on them, or their entry there is damaged."""

import logging

from api.ledger.ledger import Ledger
from api.queue.requests import RequestQueue, SetAside
from api.schemas import RequestError
from api.transitions import about

logger = logging.getLogger("cidermill.recorder")


def give_up(ledger: Ledger, queue: RequestQueue, model: str) -> list[str]:
    """Fail in the ledger what the queue has set aside of a model, then let Redis forget it; returns the ids failed now.

    A crash between the two leaves the entries set aside, and the next call forgets them. What belongs to another ledger
    is left to that one, and what is answered already, on the results stream, to be recorded.
    """
    set_aside = queue.set_aside(model)
    known = ledger.known([entry.request_id for entry in set_aside])
    spared = queue.answered() if known else set()
    found = [entry for entry in set_aside if entry.request_id in known - spared]
    failed = [entry.request_id for entry in found if _fail(ledger, entry)]
    if found:
        queue.forget([entry.request_id for entry in found])
    return failed


def _fail(ledger: Ledger, entry: SetAside) -> bool:
    code = "worker_lost" if entry.workers else "damaged_entry"
    error = RequestError(code=code, message=f"the request was set aside: {entry.reason}", status=500)
    failed = ledger.fail(entry.request_id, error, worker=entry.workers[-1] if entry.workers else None)
    if failed:
        worker = entry.workers[-1] if entry.workers else None
        logger.warning("failed", extra=about(entry.request_id, worker, error=code, reason=entry.reason))
    return failed
