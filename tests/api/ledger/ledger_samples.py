"""Lines, events and results for the ledger's tests."""

from typing import Any

from api.dataset.request_line import InputLine, LineError
from api.schemas import GenerationResult, JobStats, Phases, RequestBody, RequestError, RequestEvent, Usage


def lines(count: int) -> list[InputLine | LineError]:
    return [InputLine(n + 1, f"c{n}", RequestBody(prompt=f"prompt {n}")) for n in range(count)]


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
