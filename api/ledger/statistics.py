"""What a batch cost and yielded, computed by SQLite from the plain columns of `results`."""

import math
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Connection, Select, func, select, union_all

from api.ledger.batches import load_batch
from api.ledger.records import BatchStats, WorkerShare
from api.ledger.tables import REQUESTS, RESULTS
from api.schemas import Phases

R = RESULTS.c
NOTES = 5
"""Notes told of a batch: there can be as many different ones as requests."""

_SUMS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_prompt_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "forced_tokens",
    "passes",
)
_PHASES = tuple(Phases.model_fields)
# Both sums over the requests that have a first token. A result of an older worker does not tell what its first pass
# brought: at least one token.
_DECODED = R.ttft_ms.is_not(None) & (R.completion_tokens >= 1)
_TOKENS_AFTER_FIRST = func.sum(R.completion_tokens - func.coalesce(R.first_pass_tokens, 1)).filter(_DECODED)
_DECODE_MS = func.sum(R.wall_ms - R.ttft_ms).filter(_DECODED)


def batch_stats(connection: Connection, batch_id: str) -> BatchStats:
    """Raises NotFoundError."""
    counts = load_batch(connection, batch_id).counts
    totals = connection.execute(_of(batch_id, *_totals())).one()._mapping
    percentiles = _ttft_percentiles(connection, batch_id, (0.50, 0.95))
    return BatchStats(
        counts=counts,
        **{name: totals[name] or 0 for name in _SUMS},
        acceptance=_ratio(totals["accepted_tokens"], totals["drafted_tokens"]),
        tokens_per_pass=_ratio(totals["tokens_of_passes"], totals["passes"]),
        decode_tps=_ratio(totals["after_first"], totals["decode_ms"], 1000),
        e2e_tps=_ratio(totals["tokens_of_walls"], totals["wall_ms"], 1000),
        wall_seconds=_wall_seconds(connection, batch_id),
        ttft_mean_ms=totals["ttft_ms"],
        ttft_p50_ms=percentiles[0],
        ttft_p95_ms=percentiles[1],
        phases_ms={phase: totals[f"{phase}_ms"] or 0.0 for phase in _PHASES},
        peak_memory_bytes=totals["peak_memory_bytes"] or 0,
        repetition=totals["repetition"] or 0.0,
        longest_repeat=totals["longest_repeat"] or 0,
        acceptance_collapses=totals["acceptance_collapses"],
        finish_reasons=_texts_by_finish_reason(connection, batch_id),
        failures=_counted(connection, _of(batch_id, R.error_code)),
        verification=_counted(connection, _of(batch_id, R.verification)),
        notes=_requests_by_note(connection, batch_id),
        workers=_workers(connection, batch_id),
    )


def _totals() -> list[ColumnElement[Any]]:
    return [
        *(func.sum(R[name]).label(name) for name in _SUMS),
        *(func.sum(R[f"{phase}_ms"]).label(f"{phase}_ms") for phase in _PHASES),
        func.sum(R.completion_tokens).filter(R.passes > 0).label("tokens_of_passes"),
        func.sum(R.completion_tokens).filter(R.wall_ms.is_not(None)).label("tokens_of_walls"),
        func.sum(R.wall_ms).label("wall_ms"),
        _TOKENS_AFTER_FIRST.label("after_first"),
        _DECODE_MS.label("decode_ms"),
        func.avg(R.ttft_ms).label("ttft_ms"),
        func.max(R.peak_memory_bytes).label("peak_memory_bytes"),
        func.max(R.repetition).label("repetition"),
        func.max(R.longest_repeat).label("longest_repeat"),
        func.count(R.acceptance_collapsed_at).label("acceptance_collapses"),
    ]


def _of(batch_id: str, *columns: Any) -> Select[Any]:
    joined = RESULTS.join(REQUESTS, REQUESTS.c.id == R.request_id)
    return select(*columns).select_from(joined).where(REQUESTS.c.batch_id == batch_id)


def _ratio(numerator: float | None, denominator: float | None, scale: float = 1) -> float | None:
    return scale * (numerator or 0) / denominator if denominator else None


def _wall_seconds(connection: Connection, batch_id: str) -> float | None:
    """Of the requests that a worker had: a line refused at submission has finished before anything started."""
    ran = (REQUESTS.c.batch_id == batch_id) & REQUESTS.c.started_at.is_not(None)
    query = select(func.min(REQUESTS.c.started_at), func.max(REQUESTS.c.finished_at)).where(ran)
    first, last = connection.execute(query).one()
    # Two workers' clocks can disagree by more than a short batch lasts.
    return None if last is None else max(0.0, last - first)


def _ttft_percentiles(connection: Connection, batch_id: str, shares: tuple[float, ...]) -> list[float | None]:
    """By nearest rank: the smallest value that at least the share of all values does not exceed."""
    count = connection.execute(_of(batch_id, func.count(R.ttft_ms))).scalar_one()
    ordered = _of(batch_id, R.ttft_ms).where(R.ttft_ms.is_not(None)).order_by(R.ttft_ms).limit(1)
    ranks = [max(0, math.ceil(share * count) - 1) for share in shares]
    return [connection.execute(ordered.offset(rank)).scalar() for rank in ranks]


def _texts_by_finish_reason(connection: Connection, batch_id: str) -> dict[str, int]:
    further = func.json_each(R.further_choices).table_valued("value", joins_implicitly=True)
    reason = func.json_extract(further.c.value, "$.finish_reason")
    return _counted(connection, union_all(_of(batch_id, R.finish_reason), _of(batch_id, reason)))


def _requests_by_note(connection: Connection, batch_id: str) -> dict[str, int]:
    note = func.json_each(R.notes).table_valued("value", joins_implicitly=True).c.value
    return _counted(connection, _of(batch_id, note), limit=NOTES)


def _counted(
    connection: Connection, values: Select[Any] | CompoundSelect[Any], limit: int | None = None
) -> dict[str, int]:
    """How often each value of a query's one column comes, the most frequent first; NULLs are left out."""
    (value,), count = values.subquery().c, func.count().label("times")
    query = select(value, count).where(value.is_not(None)).group_by(value).order_by(count.desc(), value).limit(limit)
    return {name: int(times) for name, times in connection.execute(query)}


def _workers(connection: Connection, batch_id: str) -> list[WorkerShare]:
    columns = (R.worker, func.count(), func.sum(R.completion_tokens), _TOKENS_AFTER_FIRST, _DECODE_MS)
    query = _of(batch_id, *columns).where(R.worker.is_not(None)).group_by(R.worker).order_by(R.worker)
    return [
        WorkerShare(worker, requests, tokens or 0, _ratio(after_first, decode_ms, 1000))
        for worker, requests, tokens, after_first, decode_ms in connection.execute(query)
    ]
