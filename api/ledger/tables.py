"""The tables of the ledger, as plain as the `sqlite3` shell likes them.

Times are seconds since the epoch, durations milliseconds, rates tokens a second. `migrations/` creates the same tables.
"""

from typing import Any, ClassVar, cast

from sqlalchemy import (
    REAL,
    CheckConstraint,
    ForeignKey,
    Index,
    MetaData,
    Table,
    TextClause,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from api.ledger.columns import JsonText, SafeText
from api.states import OPEN_REQUEST_STATES, BatchState, RequestState

REVISION = "0008"
"""The migration that these tables correspond to."""


def _one_of(column: str, values: type[RequestState] | type[BatchState]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


# Literals, not parameters: SQLite uses a partial index below only where the query repeats its condition.
OPEN = text(f"requests.state IN ({', '.join(sorted(repr(state.value) for state in OPEN_REQUEST_STATES))})")
_BATCH = "rtrim(request_id, '0123456789')"
BATCH_OF_REQUEST: Any = literal_column(_BATCH)
"""The id of the batch of a result or an event, with the hyphen after it."""
_NOTED = "notes != '[]'"
_SEVERAL = "further_choices IS NOT NULL"
NOTED, SEVERAL = text(_NOTED), text(_SEVERAL)
STARTED = text("requests.started_at IS NOT NULL")
FINISHED = text(f"{STARTED.text} AND requests.finished_at IS NOT NULL")


def _of_index(condition: TextClause) -> TextClause:
    return text(condition.text.replace("requests.", ""))


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {str: SafeText, float: REAL}


class BatchRow(Base):
    """queued to expired: how many of its requests are in that state."""

    """expires_at: the deadline, on the clock of the ledger's machine; NULL where there is none."""

    __tablename__ = "batches"
    __table_args__ = (CheckConstraint(_one_of("state", BatchState), name="state"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    priority: Mapped[str]
    state: Mapped[str]
    input_path: Mapped[str]
    input_sha256: Mapped[str]
    fingerprint: Mapped[str] = mapped_column(index=True)
    output_path: Mapped[str | None]
    output_format: Mapped[str]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    delivered_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    queued: Mapped[int] = mapped_column(server_default="0")
    running: Mapped[int] = mapped_column(server_default="0")
    completed: Mapped[int] = mapped_column(server_default="0")
    failed: Mapped[int] = mapped_column(server_default="0")
    cancelled: Mapped[int] = mapped_column(server_default="0")
    expired: Mapped[int] = mapped_column(server_default="0")


class RequestRow(Base):
    """body: JSON of the RequestBody; NULL where the input line was bad. attempts: the number of the latest attempt."""

    __tablename__ = "requests"
    __table_args__ = (
        UniqueConstraint("batch_id", "idx"),
        CheckConstraint(_one_of("state", RequestState), name="state"),
        Index("ix_requests_open", "batch_id", "idx", sqlite_where=_of_index(OPEN)),
        Index("ix_requests_custom_id", "custom_id"),
        Index("ix_requests_started", "batch_id", "started_at", sqlite_where=_of_index(STARTED)),
        Index("ix_requests_finished", "batch_id", "finished_at", sqlite_where=_of_index(FINISHED)),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    idx: Mapped[int]
    custom_id: Mapped[str]
    line: Mapped[int]
    state: Mapped[str]
    attempts: Mapped[int]
    worker: Mapped[str | None]
    body: Mapped[str | None]
    queued_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class ResultRow(Base):
    """The one result of a request and its measurements; the fields are those of GenerationResult and JobStats.

    further_choices: a JSON list, NULL for a single choice; text, finish_reason and the like are those of the first.
    """

    __tablename__ = "results"
    __table_args__ = (
        Index("ix_results_ttft", text(_BATCH), "ttft_ms", sqlite_where=text("ttft_ms IS NOT NULL")),
        Index("ix_results_notes", "request_id", sqlite_where=text(_NOTED)),
        Index("ix_results_further_choices", "request_id", sqlite_where=text(_SEVERAL)),
    )

    request_id: Mapped[str] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    text: Mapped[str]
    reasoning: Mapped[str | None]
    finish_reason: Mapped[str | None]
    matched_stop: Mapped[str | None]
    matched_stop_token: Mapped[int | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    error_status: Mapped[int | None]
    prompt_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    cached_prompt_tokens: Mapped[int | None]
    reasoning_tokens: Mapped[int | None]
    worker: Mapped[str | None]
    attempt: Mapped[int | None]
    model: Mapped[str | None]
    drafter: Mapped[str | None]
    verification: Mapped[str | None]
    acceptance_rule: Mapped[str | None]
    kernels: Mapped[str | None]
    chip: Mapped[str | None]
    wall_ms: Mapped[float | None]
    ttft_ms: Mapped[float | None]
    first_pass_tokens: Mapped[int | None]
    decode_tps: Mapped[float | None]
    e2e_tps: Mapped[float | None]
    passes: Mapped[int | None]
    drafted_tokens: Mapped[int | None]
    accepted_tokens: Mapped[int | None]
    forced_tokens: Mapped[int | None]
    acceptance: Mapped[float | None]
    tokens_per_pass: Mapped[float | None]
    prefill_ms: Mapped[float | None]
    draft_ms: Mapped[float | None]
    verify_ms: Mapped[float | None]
    sample_ms: Mapped[float | None]
    commit_ms: Mapped[float | None]
    other_ms: Mapped[float | None]
    peak_memory_bytes: Mapped[int | None]
    repetition: Mapped[float | None]
    longest_repeat: Mapped[int | None]
    acceptance_collapsed_at: Mapped[int | None]
    token_ids: Mapped[Any] = mapped_column(JsonText)
    logprobs: Mapped[Any | None] = mapped_column(JsonText)
    sampling: Mapped[Any] = mapped_column(JsonText)
    notes: Mapped[Any] = mapped_column(JsonText)
    budgets: Mapped[Any | None] = mapped_column(JsonText)
    further_choices: Mapped[Any | None] = mapped_column(JsonText)


class EventRow(Base):
    """What happened to a request, in the order in which the ledger heard of it.

    kind: started, handed_back, finished, late (a result after the first), failed (given up), requeued, cancelled,
    expired (by the ledger, or by the worker that it names). detail: the reason, the finish reason or the code of the
    error. The unique key makes a notice that is delivered twice count once.
    """

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("request_id", "kind", "worker", "attempt", "at"),
        Index("ix_events_batch", text(_BATCH)),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"))
    kind: Mapped[str]
    worker: Mapped[str]
    attempt: Mapped[int]
    at: Mapped[float]
    detail: Mapped[str | None]


class TallyRow(Base):
    """Sums, and maxima, over the results of a batch that have the same worker, finish reason, error and verification.

    The four are empty where a result has none. tokens_of_passes, tokens_of_walls: completion tokens of the results that
    tell passes, or a wall time. after_first, decode_ms: both over the results that have a first token.
    """

    __tablename__ = "tallies"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    worker: Mapped[str] = mapped_column(primary_key=True)
    finish_reason: Mapped[str] = mapped_column(primary_key=True)
    error_code: Mapped[str] = mapped_column(primary_key=True)
    verification: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    cached_prompt_tokens: Mapped[int]
    drafted_tokens: Mapped[int]
    accepted_tokens: Mapped[int]
    forced_tokens: Mapped[int]
    passes: Mapped[int]
    tokens_of_passes: Mapped[int]
    tokens_of_walls: Mapped[int]
    after_first: Mapped[int]
    ttft_count: Mapped[int]
    peak_memory_bytes: Mapped[int]
    longest_repeat: Mapped[int]
    acceptance_collapses: Mapped[int]
    prefill_ms: Mapped[float]
    draft_ms: Mapped[float]
    verify_ms: Mapped[float]
    sample_ms: Mapped[float]
    commit_ms: Mapped[float]
    other_ms: Mapped[float]
    wall_ms: Mapped[float]
    decode_ms: Mapped[float]
    ttft_ms: Mapped[float]
    repetition: Mapped[float]


BATCHES = cast(Table, BatchRow.__table__)
REQUESTS = cast(Table, RequestRow.__table__)
RESULTS = cast(Table, ResultRow.__table__)
EVENTS = cast(Table, EventRow.__table__)
TALLIES = cast(Table, TallyRow.__table__)
