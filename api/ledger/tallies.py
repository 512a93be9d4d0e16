"""Running sums over the results of a batch, kept as results are entered, so that `stats` need not read them.

One row of `tallies` for each worker, finish reason, error code and verification that a batch has seen.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.dialects.sqlite import insert

from api.ledger.tables import REQUESTS, RESULTS, TALLIES
from api.schemas import Phases

R = RESULTS.c

SUMS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_prompt_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "forced_tokens",
    "passes",
)
PHASES = tuple(Phases.model_fields)
MAXIMA = ("peak_memory_bytes", "repetition", "longest_repeat")
_KINDS = ("worker", "finish_reason", "error_code", "verification")
# Both sums over the requests that have a first token. A result of an older worker does not tell what its first pass
# brought: at least one token.
_DECODED = R.ttft_ms.is_not(None) & (R.completion_tokens >= 1)
_TOKENS_AFTER_FIRST = func.sum(R.completion_tokens - func.coalesce(R.first_pass_tokens, 1)).filter(_DECODED)
_DECODE_MS = func.sum(R.wall_ms - R.ttft_ms).filter(_DECODED)


def add(connection: Connection, chosen: ColumnElement[bool]) -> None:
    """Add results that were just entered to the sums of their batches; chosen: a condition on `results`."""
    kinds = [func.coalesce(R[name], "").label(name) for name in _KINDS]
    totals = [func.coalesce(total, 0).label(total.name) for total in _totals()]
    joined = RESULTS.join(REQUESTS, REQUESTS.c.id == R.request_id)
    grouped = select(REQUESTS.c.batch_id, *kinds, *totals).select_from(joined).where(chosen)
    grouped = grouped.group_by(REQUESTS.c.batch_id, *kinds)
    added = insert(TALLIES).from_select([column.name for column in grouped.selected_columns], grouped)
    summed: dict[str, Any] = {
        total.name: func.max(TALLIES.c[total.name], added.excluded[total.name])
        if total.name in MAXIMA
        else TALLIES.c[total.name] + added.excluded[total.name]
        for total in totals
    }
    connection.execute(added.on_conflict_do_update(index_elements=["batch_id", *_KINDS], set_=summed))


def _totals() -> list[ColumnElement[Any]]:
    return [
        func.count().label("requests"),
        *(func.sum(R[name]).label(name) for name in SUMS),
        *(func.sum(R[f"{phase}_ms"]).label(f"{phase}_ms") for phase in PHASES),
        func.sum(R.completion_tokens).filter(R.passes > 0).label("tokens_of_passes"),
        func.sum(R.completion_tokens).filter(R.wall_ms.is_not(None)).label("tokens_of_walls"),
        func.sum(R.wall_ms).label("wall_ms"),
        _TOKENS_AFTER_FIRST.label("after_first"),
        _DECODE_MS.label("decode_ms"),
        func.sum(R.ttft_ms).label("ttft_ms"),
        func.count(R.ttft_ms).label("ttft_count"),
        func.max(R.peak_memory_bytes).label("peak_memory_bytes"),
        func.max(R.repetition).label("repetition"),
        func.max(R.longest_repeat).label("longest_repeat"),
        func.count(R.acceptance_collapsed_at).label("acceptance_collapses"),
    ]
