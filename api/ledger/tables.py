"""The tables of the ledger, as plain as the `sqlite3` shell likes them.

Times are seconds since the epoch, durations milliseconds, rates tokens a second. `migrations/` creates the same tables.
"""

from typing import Any

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    TextClause,
    UniqueConstraint,
    literal_column,
    text,
)

from api.ledger.columns import JsonText, SafeText
from api.states import OPEN_REQUEST_STATES, BatchState, RequestState

REVISION = "0009"
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


METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

BATCHES = Table(
    "batches",
    METADATA,
    Column("id", SafeText, primary_key=True),
    Column("model", SafeText, nullable=False),
    Column("priority", SafeText, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("input_path", SafeText, nullable=False),
    Column("input_sha256", SafeText, nullable=False),
    Column("fingerprint", SafeText, index=True, nullable=False),
    Column("output_path", SafeText),
    Column("output_format", SafeText, nullable=False),
    Column("created_at", REAL, nullable=False),
    Column("finished_at", REAL),
    Column("delivered_at", REAL),
    Column("expires_at", REAL),
    Column("queued", Integer, server_default="0", nullable=False),
    Column("running", Integer, server_default="0", nullable=False),
    Column("completed", Integer, server_default="0", nullable=False),
    Column("failed", Integer, server_default="0", nullable=False),
    Column("cancelled", Integer, server_default="0", nullable=False),
    Column("expired", Integer, server_default="0", nullable=False),
    Column("placed_in", SafeText),
    CheckConstraint(_one_of("state", BatchState), name="state"),
)
"""expires_at: the deadline, on the clock of the ledger's machine; NULL where there is none. queued to expired: how many
of its requests are in that state. placed_in: the address of the Redis that it was last put into, NULL before that.
"""

REQUESTS = Table(
    "requests",
    METADATA,
    Column("id", SafeText, primary_key=True),
    Column("batch_id", SafeText, ForeignKey("batches.id", ondelete="CASCADE"), nullable=False),
    Column("idx", Integer, nullable=False),
    Column("custom_id", SafeText, nullable=False),
    Column("line", Integer, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("worker", SafeText),
    Column("body", SafeText),
    Column("queued_at", REAL, nullable=False),
    Column("started_at", REAL),
    Column("finished_at", REAL),
    UniqueConstraint("batch_id", "idx"),
    CheckConstraint(_one_of("state", RequestState), name="state"),
    Index("ix_requests_open", "batch_id", "idx", sqlite_where=_of_index(OPEN)),
    Index("ix_requests_custom_id", "custom_id"),
    Index("ix_requests_started", "batch_id", "started_at", sqlite_where=_of_index(STARTED)),
    Index("ix_requests_finished", "batch_id", "finished_at", sqlite_where=_of_index(FINISHED)),
)
"""body: JSON of the RequestBody; NULL where the input line was bad. attempts: the number of the latest attempt."""

RESULTS = Table(
    "results",
    METADATA,
    Column("request_id", SafeText, ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True),
    Column("text", SafeText, nullable=False),
    Column("reasoning", SafeText),
    Column("finish_reason", SafeText),
    Column("matched_stop", SafeText),
    Column("matched_stop_token", Integer),
    Column("error_code", SafeText),
    Column("error_message", SafeText),
    Column("error_status", Integer),
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("cached_prompt_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("worker", SafeText),
    Column("attempt", Integer),
    Column("model", SafeText),
    Column("drafter", SafeText),
    Column("verification", SafeText),
    Column("acceptance_rule", SafeText),
    Column("kernels", SafeText),
    Column("chip", SafeText),
    Column("wall_ms", REAL),
    Column("ttft_ms", REAL),
    Column("first_pass_tokens", Integer),
    Column("decode_tps", REAL),
    Column("e2e_tps", REAL),
    Column("passes", Integer),
    Column("drafted_tokens", Integer),
    Column("accepted_tokens", Integer),
    Column("forced_tokens", Integer),
    Column("acceptance", REAL),
    Column("tokens_per_pass", REAL),
    Column("prefill_ms", REAL),
    Column("draft_ms", REAL),
    Column("verify_ms", REAL),
    Column("sample_ms", REAL),
    Column("commit_ms", REAL),
    Column("other_ms", REAL),
    Column("peak_memory_bytes", Integer),
    Column("repetition", REAL),
    Column("longest_repeat", Integer),
    Column("acceptance_collapsed_at", Integer),
    Column("token_ids", JsonText, nullable=False),
    Column("logprobs", JsonText),
    Column("sampling", JsonText, nullable=False),
    Column("notes", JsonText, nullable=False),
    Column("budgets", JsonText),
    Column("further_choices", JsonText),
    Index("ix_results_ttft", text(_BATCH), "ttft_ms", sqlite_where=text("ttft_ms IS NOT NULL")),
    Index("ix_results_notes", "request_id", sqlite_where=text(_NOTED)),
    Index("ix_results_further_choices", "request_id", sqlite_where=text(_SEVERAL)),
)
"""The one result of a request and its measurements; the fields are those of GenerationResult and JobStats.

further_choices: a JSON list, NULL for a single choice; text, finish_reason and the like are those of the first.
"""

EVENTS = Table(
    "events",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("request_id", SafeText, ForeignKey("requests.id", ondelete="CASCADE"), nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("worker", SafeText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("at", REAL, nullable=False),
    Column("detail", SafeText),
    UniqueConstraint("request_id", "kind", "worker", "attempt", "at"),
    Index("ix_events_batch", text(_BATCH)),
)
"""What happened to a request, in the order in which the ledger heard of it.

kind: started, handed_back, finished, late (a result after the first), failed (given up), requeued, cancelled,
expired (by the ledger, or by the worker that it names). detail: the reason, the finish reason or the code of the
error. The unique key makes a notice that is delivered twice count once.
"""

TALLIES = Table(
    "tallies",
    METADATA,
    Column("batch_id", SafeText, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("worker", SafeText, primary_key=True),
    Column("finish_reason", SafeText, primary_key=True),
    Column("error_code", SafeText, primary_key=True),
    Column("verification", SafeText, primary_key=True),
    Column("requests", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("cached_prompt_tokens", Integer, nullable=False),
    Column("drafted_tokens", Integer, nullable=False),
    Column("accepted_tokens", Integer, nullable=False),
    Column("forced_tokens", Integer, nullable=False),
    Column("passes", Integer, nullable=False),
    Column("tokens_of_passes", Integer, nullable=False),
    Column("tokens_of_walls", Integer, nullable=False),
    Column("after_first", Integer, nullable=False),
    Column("ttft_count", Integer, nullable=False),
    Column("peak_memory_bytes", Integer, nullable=False),
    Column("longest_repeat", Integer, nullable=False),
    Column("acceptance_collapses", Integer, nullable=False),
    Column("prefill_ms", REAL, nullable=False),
    Column("draft_ms", REAL, nullable=False),
    Column("verify_ms", REAL, nullable=False),
    Column("sample_ms", REAL, nullable=False),
    Column("commit_ms", REAL, nullable=False),
    Column("other_ms", REAL, nullable=False),
    Column("wall_ms", REAL, nullable=False),
    Column("decode_ms", REAL, nullable=False),
    Column("ttft_ms", REAL, nullable=False),
    Column("repetition", REAL, nullable=False),
)
"""Sums, and maxima, over the results of a batch that have the same worker, finish reason, error and verification.

The four are empty where a result has none. tokens_of_passes, tokens_of_walls: completion tokens of the results that
tell passes, or a wall time. after_first, decode_ms: both over the results that have a first token.
"""
