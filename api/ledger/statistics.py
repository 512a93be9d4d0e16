"""What a batch cost and yielded, computed by SQLite from the plain columns of `results`.

The results of a batch lie side by side in the index of their ids, and are read once for all that can be summed.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, func, select

from api.identity import bounds_of
from api.ledger.batches import load_batch
from api.ledger.records import BatchStats, WorkerShare
from api.ledger.tables import REQUESTS, RESULTS, STARTED
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
_MAXIMA = ("peak_memory_bytes", "repetition", "longest_repeat")
_KINDS = (R.worker, R.finish_reason, R.error_code, R.verification)
# Both sums over the requests that have a first token. A result of an older worker does not tell what its first pass
# brought: at least one token.
_DECODED = R.ttft_ms.is_not(None) & (R.completion_tokens >= 1)
_TOKENS_AFTER_FIRST = func.sum(R.completion_tokens - func.coalesce(R.first_pass_tokens, 1)).filter(_DECODED)
_DECODE_MS = func.sum(R.wall_ms - R.ttft_ms).filter(_DECODED)


def batch_stats(connection: Connection, batch_id: str) -> BatchStats:
    """Raises NotFoundError."""
    counts = load_batch(connection, batch_id).counts
    groups = connection.execute(_of(batch_id, *_KINDS, *_totals()).group_by(*_KINDS)).mappings().all()
    totals = _folded(groups)
    percentiles = [_ttft_percentile(connection, batch_id, share, totals["ttft_count"] or 0) for share in (0.50, 0.95)]
    return BatchStats(
        counts=counts,
        **{name: totals[name] or 0 for name in _SUMS},
        acceptance=_ratio(totals["accepted_tokens"], totals["drafted_tokens"]),
        tokens_per_pass=_ratio(totals["tokens_of_passes"], totals["passes"]),
        decode_tps=_ratio(totals["after_first"], totals["decode_ms"], 1000),
        e2e_tps=_ratio(totals["tokens_of_walls"], totals["wall_ms"], 1000),
        wall_seconds=_wall_seconds(connection, batch_id),
        ttft_mean_ms=_ratio(totals["ttft_ms"], totals["ttft_count"]),
        ttft_p50_ms=percentiles[0],
        ttft_p95_ms=percentiles[1],
        phases_ms={phase: totals[f"{phase}_ms"] or 0.0 for phase in _PHASES},
        peak_memory_bytes=totals["peak_memory_bytes"] or 0,
        repetition=totals["repetition"] or 0.0,
        longest_repeat=totals["longest_repeat"] or 0,
        acceptance_collapses=totals["acceptance_collapses"] or 0,
        finish_reasons=_most_frequent(
            _counted(groups, "finish_reason") + _further_finish_reasons(connection, batch_id)
        ),
        failures=_most_frequent(_counted(groups, "error_code")),
        verification=_most_frequent(_counted(groups, "verification")),
        notes=_requests_by_note(connection, batch_id),
        workers=_workers(groups),
    )


def _totals() -> list[ColumnElement[Any]]:
    return [
        func.count().label("requests"),
        *(func.sum(R[name]).label(name) for name in _SUMS),
        *(func.sum(R[f"{phase}_ms"]).label(f"{phase}_ms") for phase in _PHASES),
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


def _of(batch_id: str, *columns: Any) -> Select[Any]:
    first, end = bounds_of(batch_id)
    return select(*columns).where(and_(R.request_id >= first, R.request_id < end))


def _folded(groups: Sequence[RowMapping]) -> dict[str, Any]:
    """Each total over all groups; None where no group has one."""
    totals: dict[str, Any] = dict.fromkeys(column.name for column in _totals())
    for name in totals:
        values = [group[name] for group in groups if group[name] is not None]
        if values:
            totals[name] = max(values) if name in _MAXIMA else sum(values)
    return totals


def _ratio(numerator: float | None, denominator: float | None, scale: float = 1) -> float | None:
    return scale * (numerator or 0) / denominator if denominator else None


def _wall_seconds(connection: Connection, batch_id: str) -> float | None:
    """Of the requests that a worker had: a line refused at submission has finished before anything started."""
    ran = (REQUESTS.c.batch_id == batch_id) & STARTED
    query = select(func.min(REQUESTS.c.started_at), func.max(REQUESTS.c.finished_at)).where(ran)
    first, last = connection.execute(query).one()
    # Two workers' clocks can disagree by more than a short batch lasts.
    return None if last is None else max(0.0, last - first)


def _ttft_percentile(connection: Connection, batch_id: str, share: float, count: int) -> float | None:
    """By nearest rank: the smallest value that at least the share of all values does not exceed."""
    rank = max(0, math.ceil(share * count) - 1)
    # SQLite sorts no more than it has to skip, so from the nearer end.
    backwards = rank > count // 2
    order = R.ttft_ms.desc() if backwards else R.ttft_ms
    query = _of(batch_id, R.ttft_ms).where(R.ttft_ms.is_not(None)).order_by(order)
    return connection.execute(query.offset(count - 1 - rank if backwards else rank).limit(1)).scalar()


def _counted(groups: Sequence[RowMapping], kind: str) -> Counter[str]:
    """Requests by one of the kinds; those that have none are left out."""
    counts: Counter[str] = Counter()
    for group in groups:
        if group[kind] is not None:
            counts[group[kind]] += group["requests"]
    return counts


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _further_finish_reasons(connection: Connection, batch_id: str) -> Counter[str]:
    further = func.json_each(R.further_choices).table_valued("value", joins_implicitly=True)
    reason = func.json_extract(further.c.value, "$.finish_reason")
    query = _of(batch_id, reason, func.count()).where(R.further_choices.is_not(None), reason.is_not(None))
    return Counter({name: int(times) for name, times in connection.execute(query.group_by(reason))})


def _requests_by_note(connection: Connection, batch_id: str) -> dict[str, int]:
    note = func.json_each(R.notes).table_valued("value", joins_implicitly=True).c.value
    times = func.count()
    query = _of(batch_id, note, times).where(R.notes != []).group_by(note).order_by(times.desc(), note).limit(NOTES)
    return {name: int(count) for name, count in connection.execute(query)}


def _workers(groups: Sequence[RowMapping]) -> list[WorkerShare]:
    shares = []
    for worker in sorted({group["worker"] for group in groups if group["worker"] is not None}):
        own = _folded([group for group in groups if group["worker"] == worker])
        rate = _ratio(own["after_first"], own["decode_ms"], 1000)
        shares.append(WorkerShare(worker, own["requests"], own["completion_tokens"] or 0, rate))
    return shares
