"""What a batch cost and yielded, from its tallies, and from indices where a sum does not tell it."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, func, select

from api.identity import bounds_of
from api.ledger.batches import load_batch
from api.ledger.records import BatchStats, WorkerShare
from api.ledger.tables import BATCH_OF_REQUEST, FINISHED, NOTED, REQUESTS, RESULTS, SEVERAL, STARTED, TALLIES
from api.ledger.tallies import MAXIMA, PHASES, SUMS

R = RESULTS.c
NOTES = 5
"""Notes told of a batch: there can be as many different ones as requests."""


def batch_stats(connection: Connection, batch_id: str) -> BatchStats:
    """Raises NotFoundError."""
    counts = load_batch(connection, batch_id).counts
    groups = connection.execute(select(TALLIES).where(TALLIES.c.batch_id == batch_id)).mappings().all()
    totals = _folded(groups)
    percentiles = [_ttft_percentile(connection, batch_id, share, totals["ttft_count"]) for share in (0.50, 0.95)]
    return BatchStats(
        counts=counts,
        **{name: totals[name] for name in SUMS},
        acceptance=_ratio(totals["accepted_tokens"], totals["drafted_tokens"]),
        tokens_per_pass=_ratio(totals["tokens_of_passes"], totals["passes"]),
        decode_tps=_ratio(totals["after_first"], totals["decode_ms"], 1000),
        e2e_tps=_ratio(totals["tokens_of_walls"], totals["wall_ms"], 1000),
        wall_seconds=_wall_seconds(connection, batch_id),
        ttft_mean_ms=_ratio(totals["ttft_ms"], totals["ttft_count"]),
        ttft_p50_ms=percentiles[0],
        ttft_p95_ms=percentiles[1],
        phases_ms={phase: totals[f"{phase}_ms"] for phase in PHASES},
        peak_memory_bytes=totals["peak_memory_bytes"],
        repetition=totals["repetition"],
        longest_repeat=totals["longest_repeat"],
        acceptance_collapses=totals["acceptance_collapses"],
        finish_reasons=_most_frequent(
            _counted(groups, "finish_reason") + _further_finish_reasons(connection, batch_id)
        ),
        failures=_most_frequent(_counted(groups, "error_code")),
        verification=_most_frequent(_counted(groups, "verification")),
        notes=_requests_by_note(connection, batch_id),
        workers=_workers(groups),
    )


def _of(batch_id: str, *columns: Any) -> Select[Any]:
    first, end = bounds_of(batch_id)
    return select(*columns).where(and_(R.request_id >= first, R.request_id < end))


def _folded(groups: Sequence[RowMapping]) -> dict[str, Any]:
    """Each total over all groups; 0 where there is none."""
    numbers = [column.name for column in TALLIES.columns if not column.primary_key]
    return {name: (max if name in MAXIMA else sum)([0, *(group[name] for group in groups)]) for name in numbers}


def _ratio(numerator: float | None, denominator: float | None, scale: float = 1) -> float | None:
    return scale * (numerator or 0) / denominator if denominator else None


def _wall_seconds(connection: Connection, batch_id: str) -> float | None:
    """Of the requests that a worker had: a line refused at submission has finished before anything started."""
    c = REQUESTS.c
    # In one query each: SQLite then looks at the end of an index, and not at all of it.
    first = connection.scalar(select(func.min(c.started_at)).where(c.batch_id == batch_id, STARTED))
    last = connection.scalar(select(func.max(c.finished_at)).where(c.batch_id == batch_id, FINISHED))
    # Two workers' clocks can disagree by more than a short batch lasts.
    return None if first is None or last is None else max(0.0, last - first)


def _ttft_percentile(connection: Connection, batch_id: str, share: float, count: int) -> float | None:
    """By nearest rank: the smallest value that at least the share of all values does not exceed."""
    rank = max(0, math.ceil(share * count) - 1)
    # SQLite walks over what it skips, so from the nearer end.
    backwards = rank > count // 2
    order = R.ttft_ms.desc() if backwards else R.ttft_ms
    first, _ = bounds_of(batch_id)
    query = select(R.ttft_ms).where(first == BATCH_OF_REQUEST, R.ttft_ms.is_not(None)).order_by(order)
    return connection.execute(query.offset(count - 1 - rank if backwards else rank).limit(1)).scalar()


def _counted(groups: Sequence[RowMapping], kind: str) -> Counter[str]:
    """Requests by one of the kinds; those that have none are left out."""
    counts: Counter[str] = Counter()
    for group in groups:
        if group[kind]:
            counts[group[kind]] += group["requests"]
    return counts


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _further_finish_reasons(connection: Connection, batch_id: str) -> Counter[str]:
    further = func.json_each(R.further_choices).table_valued("value", joins_implicitly=True)
    reason = func.json_extract(further.c.value, "$.finish_reason")
    query = _of(batch_id, reason, func.count()).where(SEVERAL, reason.is_not(None))
    return Counter({name: int(times) for name, times in connection.execute(query.group_by(reason))})


def _requests_by_note(connection: Connection, batch_id: str) -> dict[str, int]:
    note = func.json_each(R.notes).table_valued("value", joins_implicitly=True).c.value
    times = func.count()
    query = _of(batch_id, note, times).where(NOTED).group_by(note).order_by(times.desc(), note).limit(NOTES)
    return {name: int(count) for name, count in connection.execute(query)}


def _workers(groups: Sequence[RowMapping]) -> list[WorkerShare]:
    shares = []
    for worker in sorted({group["worker"] for group in groups if group["worker"]}):
        own = _folded([group for group in groups if group["worker"] == worker])
        rate = _ratio(own["after_first"], own["decode_ms"], 1000)
        shares.append(WorkerShare(worker, own["requests"], own["completion_tokens"], rate))
    return shares
