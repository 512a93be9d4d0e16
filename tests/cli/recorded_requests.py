"""Requests as the ledger tells them, for what the command line makes of them."""

from typing import Any

from api.ledger.records import RecordedRequest
from api.schemas import GenerationResult, JobStats, RequestBody, RequestError, Usage
from api.states import RequestState

REQUEST = "batch_1-0"
STATS = JobStats(wall_ms=100.0, decode_tps=12.34, tokens_per_pass=1.5, acceptance=0.25, verification="chain")


def _recorded(state: RequestState, body: dict[str, Any], result: GenerationResult, stats: JobStats | None) -> Any:
    return RecordedRequest(
        request_id=REQUEST,
        batch_id="batch_1",
        index=0,
        custom_id="mine",
        line=1,
        state=state,
        attempts=1,
        worker="w",
        body=RequestBody.model_validate(body),
        queued_at=1.0,
        started_at=2.0,
        finished_at=3.0,
        result=result,
        stats=stats,
    )


def answered(body: dict[str, Any], *, completion_tokens: int = 9, **answer: Any) -> RecordedRequest:
    """A completed request; answer: fields of its result."""
    usage = Usage(prompt_tokens=5, completion_tokens=completion_tokens)
    result = GenerationResult(request_id=REQUEST, **{"finish_reason": "stop", "usage": usage} | answer)
    return _recorded(RequestState.COMPLETED, body, result, STATS)


def failed(body: dict[str, Any], code: str, message: str) -> RecordedRequest:
    result = GenerationResult(request_id=REQUEST, error=RequestError(code=code, message=message))
    return _recorded(RequestState.FAILED, body, result, None)
