"""Events that the ledger cannot hold: each is recorded apart, so that one stops none of the others."""

import logging
from collections.abc import Iterable

from api.errors import UnstorableError
from api.ledger.ledger import Ledger
from api.schemas import GenerationResult, RequestError, RequestEvent

logger = logging.getLogger("cidermill.recorder")

LONGEST_NAME = 255


def record_apart(ledger: Ledger, events: Iterable[RequestEvent]) -> list[str]:
    """Enter events one by one; returns the ids that became final by this.

    What the ledger refuses is dropped, with a line in the log; a result is entered as a failed one, which says why.
    Raises LedgerError where the ledger refuses that, too: then it is not for the event. StorageError.
    """
    final: list[str] = []
    for event in events:
        try:
            final += ledger.record([event])
        except UnstorableError as error:
            logger.error("%s of %a is dropped: %s", event.kind, event.request_id, error)
            if event.final:
                final += ledger.record([_without_content(event, error)])
    return final


def _without_content(event: RequestEvent, error: UnstorableError) -> RequestEvent:
    """The same end of the request, with nothing in it that could be too large."""
    bare = {"worker": event.worker[:LONGEST_NAME], "reason": None, "stats": None}
    if event.result is None:
        return event.model_copy(update=bare)
    message = f"the result of worker {event.worker[:LONGEST_NAME]} was refused: {error}"
    refused = RequestError(code="invalid_result", message=message, status=500)
    return event.model_copy(
        update={**bare, "result": GenerationResult(request_id=event.request_id, error=refused)},
    )
