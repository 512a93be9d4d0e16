"""Lines, events and results for the ledger's tests."""

from typing import Any

from sqlalchemy import func, select

from api.dataset.request_line import InputLine, LineError
from api.ledger.connection import reading
from api.ledger.ledger import Ledger
from api.ledger.tables import BATCHES, REQUESTS
from api.schemas import GenerationResult, JobStats, Phases, RequestBody, RequestError, RequestEvent, Usage
from api.states import RequestState


def lines(count: int) -> list[InputLine | LineError]:
    return [InputLine(n + 1, f"c{n}", RequestBody(prompt=f"prompt {n}")) for n in range(count)]


def assert_counts(ledger: Ledger) -> None:
    """The counts in the rows of all batches are those of a full count."""
    counted = select(REQUESTS.c.batch_id, REQUESTS.c.state, func.count()).group_by("batch_id", "state")
    with reading(ledger.engine, ledger.path) as connection:
        expected = {(batch_id, state): count for batch_id, state, count in connection.execute(counted)}
        found = {
            (row.id, state.value): getattr(row, state.value)
            for row in connection.execute(select(BATCHES))
            for state in RequestState
        }
    assert {by: count for by, count in found.items() if count} == expected


def started(request_id: str, *, worker: str = "mac-1", attempt: int = 1, at: float = 100.0) -> RequestEvent:
    return RequestEvent(kind="started", request_id=request_id, worker=worker, attempt=attempt, at=at)


def handed_back(request_id: str, *, worker: str = "mac-1", attempt: int = 1, at: float = 110.0) -> RequestEvent:
    return RequestEvent(kind="handed_back", request_id=request_id, worker=worker, attempt=attempt, at=at)


def requeued(
    request_id: str, *, worker: str = "mac-1", attempt: int = 1, at: float = 120.0, reason: str = "lease_lost"
) -> RequestEvent:
    return RequestEvent(kind="requeued", request_id=request_id, worker=worker, attempt=attempt, at=at, reason=reason)


def finished(
    request_id: str,
    *,
    worker: str = "mac-1",
    attempt: int = 1,
    at: float = 200.0,
    stats: JobStats | None = None,
    **result: Any,
) -> RequestEvent:
    answer = GenerationResult(request_id=request_id, **({"text": "answer", "finish_reason": "stop"} | result))
    return RequestEvent(
        kind="finished", request_id=request_id, worker=worker, attempt=attempt, at=at, result=answer, stats=stats
    )


def refused(request_id: str, code: str = "context_length_exceeded", **event: Any) -> RequestEvent:
    error = RequestError(code=code, message="too long")
    return finished(request_id, text="", finish_reason=None, error=error, **event)


def measured(prompt: int, completion: int, *, wall: float, ttft: float | None, **stats: Any) -> dict[str, Any]:
    """Usage and statistics of one result; milliseconds."""
    phases = Phases(prefill=ttft or 0.0, verify=wall - (ttft or 0.0))
    return {
        "usage": Usage(prompt_tokens=prompt, completion_tokens=completion),
        "stats": JobStats(wall_ms=wall, ttft_ms=ttft, phases=phases, **stats),
    }
