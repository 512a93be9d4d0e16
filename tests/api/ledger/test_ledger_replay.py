"""Whatever order events come in, and however often: the ledger ends where a simple model of it ends."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_samples import finished, handed_back, lines, refused, requeued, started

from api.ledger.ledger import Ledger
from api.ledger.records import HistoryEntry
from api.schemas import RequestEvent
from api.states import FINAL_REQUEST_STATES, BatchState, RequestState

REQUESTS, WORKERS = 3, ("mac-1", "mac-2")
NAMES = (f"batch_{number}" for number in itertools.count())

moments = st.tuples(
    st.sampled_from(["started", "handed_back", "requeued", "finished", "refused"]),
    st.integers(0, REQUESTS - 1),
    st.sampled_from(WORKERS),
    st.integers(1, 3),
    st.integers(1, 4),
)
MAKERS = {
    "started": started,
    "handed_back": handed_back,
    "requeued": requeued,
    "finished": finished,
    "refused": refused,
}


@pytest.fixture(scope="module")
def shared_ledger() -> Iterator[Ledger]:
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "ledger.sqlite3") as ledger:
        yield ledger


def new_batch(ledger: Ledger) -> str:
    return ledger.create_batch(
        batch_id=next(NAMES),
        model="m",
        priority="normal",
        input_path="i",
        input_sha256="s",
        fingerprint="f",
        output_path=None,
        output_format="jsonl",
        lines=lines(REQUESTS),
    ).id


def events_of(batch_id: str, told: list[tuple[str, int, str, int, int]]) -> list[RequestEvent]:
    return [
        MAKERS[kind](f"{batch_id}-{index}", worker=worker, attempt=attempt, at=float(at))
        for kind, index, worker, attempt, at in told
    ]


def outcome(ledger: Ledger, batch_id: str) -> list[object]:
    rows = list(ledger.results(batch_id))
    states = [(row.state, row.worker, row.attempts, row.started_at, row.finished_at) for row in rows]
    results = [row.result.model_dump(exclude={"request_id"}) if row.result else None for row in rows]
    histories = [[happened(entry) for entry in ledger.history(batch_id, request_ids=[row.request_id])] for row in rows]
    return [states, results, histories, ledger.batch(batch_id).state]


def happened(entry: HistoryEntry) -> tuple[str, str, int, float | None, str | None]:
    at = None if entry.kind == "queued" else entry.at
    return (entry.kind, entry.worker, entry.attempt, at, entry.detail)


@settings(max_examples=60, deadline=None)
@given(told=st.lists(moments, max_size=14), cuts=st.lists(st.integers(0, 14), max_size=4))
def test_chunks_and_repetitions_make_no_difference(
    shared_ledger: Ledger, told: list[tuple[str, int, str, int, int]], cuts: list[int]
) -> None:
    at_once, in_parts = new_batch(shared_ledger), new_batch(shared_ledger)
    shared_ledger.record(events_of(at_once, told))
    edges = [0, *sorted(cuts), len(told)]
    parts = events_of(in_parts, told)
    for start, end in itertools.pairwise(edges):
        shared_ledger.record(parts[start:end])
        shared_ledger.record(parts[start:end])
    shared_ledger.record(parts)
    assert outcome(shared_ledger, at_once) == outcome(shared_ledger, in_parts)


@settings(max_examples=60, deadline=None)
@given(told=st.lists(moments, max_size=14))
def test_the_first_result_decides_and_counts_add_up(
    shared_ledger: Ledger, told: list[tuple[str, int, str, int, int]]
) -> None:
    batch_id = new_batch(shared_ledger)
    newly = shared_ledger.record(events_of(batch_id, told))
    first = {}
    for kind, index, worker, *_ in told:
        if kind in ("finished", "refused"):
            first.setdefault(index, (kind, worker))
    assert sorted(newly) == [f"{batch_id}-{index}" for index in sorted(first)]
    batch = shared_ledger.batch(batch_id)
    assert batch.counts.total == REQUESTS
    assert batch.counts.finished == len(first)
    assert (batch.state is BatchState.COMPLETED) == (len(first) == REQUESTS)
    for row in shared_ledger.results(batch_id):
        if row.index not in first:
            assert row.state not in FINAL_REQUEST_STATES
            continue
        kind, worker = first[row.index]
        assert row.worker == worker
        assert row.state is (RequestState.COMPLETED if kind == "finished" else RequestState.FAILED)
