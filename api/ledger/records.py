"""What the ledger tells about one request, one batch's delivery, and one moment of a request's life."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from api.choices import Priority
from api.ledger.rows import result_of, stats_of
from api.schemas import Batch, GenerationRequest, GenerationResult, JobStats, RequestBody, RequestCounts
from api.states import BatchState, RequestState

# Stands for the body of a line that could not be read: such a request failed before it could be run.
UNREADABLE_BODY = RequestBody(prompt="", raw=True)


@dataclass(frozen=True)
class RecordedRequest:
    """A request, and its result if it has one.

    index: from 0, in input order. line: of the input file, from 1. attempts: the number of the latest attempt, 0 before
    the first. Times: seconds since the epoch; started_at is the start of the latest attempt. result: None while the
    request is open, and for a request that was cancelled.
    """

    request_id: str
    batch_id: str
    index: int
    custom_id: str
    line: int
    state: RequestState
    attempts: int
    worker: str | None
    body: RequestBody
    queued_at: float | None
    started_at: float | None
    finished_at: float | None
    result: GenerationResult | None
    stats: JobStats | None


class RunningBatch(NamedTuple):
    """A batch in progress. placed_in: the address of the Redis that it was last put into, if any."""

    id: str
    model: str
    priority: Priority
    placed_in: str | None


@dataclass(frozen=True)
class HistoryEntry:
    """One moment of a request's life; kind: an EventKind.

    number: of the event, growing in the order in which the ledger heard; 0 for what is no event. worker: empty where
    none was concerned. attempt: from 1, 0 before the first. at: seconds since the epoch, on the clock of whoever told.
    detail: the reason, the finish reason, or the code of the error.
    """

    number: int
    request_id: str
    kind: str
    worker: str
    attempt: int
    at: float
    detail: str | None


@dataclass(frozen=True)
class WorkerShare:
    """What one worker did of a batch. requests: with a result. decode_tps: as in BatchStats."""

    worker: str
    requests: int
    completion_tokens: int
    decode_tps: float | None


@dataclass(frozen=True)
class BatchStats:
    """Sums and ratios over the results of a batch. Ratios are sums over sums, None where there is nothing to divide.

    decode_tps: completion tokens after the first pass / (wall - ttft), over the requests that tell both. e2e_tps:
    completion tokens / wall of the requests, so what one worker yields. wall_seconds: first start to last finish of the
    batch, so completion_tokens / wall_seconds is what the fleet yields. ttft_*: milliseconds, percentiles by nearest
    rank. phases_ms: totals. repetition, longest_repeat: the worst of any request. peak_memory_bytes: the highest.
    acceptance_collapses: requests whose acceptance collapsed. finish_reasons: texts, of all choices, by finish reason.
    failures: requests by code. verification: requests by how their drafts were verified. notes: requests by what they
    have in their notes, the most frequent notes only. All of these are ordered by their counts.
    """

    counts: RequestCounts
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    forced_tokens: int
    passes: int
    acceptance: float | None
    tokens_per_pass: float | None
    decode_tps: float | None
    e2e_tps: float | None
    wall_seconds: float | None
    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    phases_ms: dict[str, float]
    peak_memory_bytes: int
    repetition: float
    longest_repeat: int
    acceptance_collapses: int
    finish_reasons: dict[str, int]
    failures: dict[str, int]
    verification: dict[str, int]
    notes: dict[str, int]
    workers: list[WorkerShare]


def recorded_request(row: Any) -> RecordedRequest:
    """From a row of `requests` joined with the columns of `results`, whose request_id is NULL without a result."""
    answered = row.request_id is not None
    return RecordedRequest(
        request_id=row.id,
        batch_id=row.batch_id,
        index=row.idx,
        custom_id=row.custom_id,
        line=row.line,
        state=RequestState(row.state),
        attempts=row.attempts,
        worker=row.request_worker,
        body=UNREADABLE_BODY if row.body is None else RequestBody.model_validate_json(row.body),
        queued_at=row.queued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        result=result_of(row) if answered else None,
        stats=stats_of(row) if answered else None,
    )


def generation_request(row: Any) -> GenerationRequest:
    """What travels to a worker, from a row of `requests` with the deadline of its batch."""
    body = RequestBody.model_validate_json(row.body)
    own = {"request_id": row.id, "expires_at": row.expires_at}
    return GenerationRequest.model_construct(body.model_fields_set | own.keys(), **dict(body), **own)


def batch_of_row(row: Any, counts: dict[str, int]) -> Batch:
    """From a row of `batches` and its requests' counts by state."""
    return Batch(
        id=row.id,
        model=row.model,
        state=BatchState(row.state),
        priority=row.priority,
        input_path=row.input_path,
        input_sha256=row.input_sha256,
        output_path=row.output_path,
        created_at=row.created_at,
        finished_at=row.finished_at,
        expires_at=row.expires_at,
        counts=RequestCounts(**counts),
    )
