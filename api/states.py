"""States of requests and batches: drawn once, moved in one place.

A request:

    queued <-> running -> completed | failed
      |           |
      +-----------+-----> cancelled | expired

A running request goes back to queued when its worker hands it back or dies. The four states on the right are final:
the first result that reaches the ledger wins, and a later one changes nothing.

A batch (OpenAI's names):

    validating -> in_progress -> finalizing -> completed
        |              |                          (also with failed requests in it)
      failed           +-> cancelling -> cancelled
                       +-> expired
"""

from enum import StrEnum


class RequestState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class BatchState(StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN_REQUEST_STATES = frozenset({RequestState.QUEUED, RequestState.RUNNING})
FINAL_REQUEST_STATES = frozenset(RequestState) - OPEN_REQUEST_STATES
OPEN_BATCH_STATES = frozenset(
    {BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING}
)

_REQUEST_MOVES: dict[RequestState, frozenset[RequestState]] = {
    RequestState.QUEUED: FINAL_REQUEST_STATES | {RequestState.RUNNING},
    RequestState.RUNNING: FINAL_REQUEST_STATES | {RequestState.QUEUED, RequestState.RUNNING},
} | {state: frozenset() for state in FINAL_REQUEST_STATES}


def may_move(current: RequestState, to: RequestState) -> bool:
    """Whether the ledger moves a request from `current` to `to`.

    queued -> completed is legal: a worker's start notice can arrive after its result, or not at all. running -> running
    is a new attempt whose predecessor died.
    """
    return to in _REQUEST_MOVES[current]
