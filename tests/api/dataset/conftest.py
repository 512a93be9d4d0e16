from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.dataset.reader import Dataset, InputLine, LineError
from api.ledger.records import RecordedRequest
from api.schemas import GenerationResult, JobStats, RequestBody, RequestError, Usage
from api.states import RequestState

BATCH = "batch_01JABCDEFGHJKMNPQRSTVWXYZ0"


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[InputLine | LineError]]:
    """Write these bytes to a file of that name and read them as a dataset."""

    def _read(data: bytes | str, name: str = "in.jsonl", **options: Any) -> list[InputLine | LineError]:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return list(Dataset(path, **options))

    return _read


def _completed(
    index: int = 0, text: str = "4", *, body: dict[str, Any] | None = None, **result: Any
) -> RecordedRequest:
    answer = {
        "text": text,
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=5, completion_tokens=2, cached_prompt_tokens=3),
    } | result
    request_id = f"{BATCH}-{index}"
    return RecordedRequest(
        request_id=request_id,
        batch_id=BATCH,
        index=index,
        custom_id=f"c{index}",
        line=index + 1,
        state=RequestState.COMPLETED,
        attempts=1,
        worker="w1",
        body=RequestBody.model_validate(body or {"messages": [{"role": "user", "content": "2+2"}], "model": "m"}),
        queued_at=1.0,
        started_at=2.0,
        finished_at=1700000000.75,
        result=GenerationResult(request_id=request_id, **answer),
        stats=JobStats(wall_ms=120.5, decode_tps=33.25, model="smollm2"),
    )


def _unanswered(state: RequestState, error: RequestError | None = None, index: int = 0) -> RecordedRequest:
    request_id = f"{BATCH}-{index}"
    return RecordedRequest(
        request_id=request_id,
        batch_id=BATCH,
        index=index,
        custom_id=f"c{index}",
        line=index + 1,
        state=state,
        attempts=0,
        worker=None,
        body=RequestBody(prompt="hi"),
        queued_at=1.0,
        started_at=None,
        finished_at=None,
        result=None if error is None else GenerationResult(request_id=request_id, error=error),
        stats=None,
    )


@pytest.fixture
def completed() -> Callable[..., RecordedRequest]:
    """Makes a completed request from its text, body and fields of its result."""
    return _completed


@pytest.fixture
def unanswered() -> Callable[..., RecordedRequest]:
    """Makes a request in a state other than completed, with its error if it failed."""
    return _unanswered


@pytest.fixture
def rows() -> list[RecordedRequest]:
    """One row of each outcome: completed, failed, cancelled, expired, still queued."""
    failed = RequestError(code="context_length_exceeded", message="9 tokens do not fit 8", status=400)
    return [
        _completed(0, "one\ntwo"),
        _unanswered(RequestState.FAILED, failed, 1),
        _unanswered(RequestState.CANCELLED, index=2),
        _unanswered(RequestState.EXPIRED, index=3),
        _unanswered(RequestState.QUEUED, index=4),
    ]
