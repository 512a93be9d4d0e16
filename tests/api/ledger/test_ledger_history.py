"""What the ledger tells of the history of requests: in order, with its reasons, page by page."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from ledger_samples import finished, handed_back, lines, refused, requeued, started

from api.dataset.request_line import LineError
from api.errors import NotFoundError
from api.ledger import ledger as ledger_module
from api.ledger.ledger import Ledger
from api.ledger.records import HistoryEntry
from api.schemas import Batch, RequestError
from api.states import RequestState
from api.transitions import FACTS

Enter = Callable[..., Batch]
POISON = RequestError(code="worker_lost", message="2 workers died while running it", status=500)


def told(entry: HistoryEntry) -> tuple[int, str, str, int, str | None]:
    """Index, kind, worker, attempt, detail."""
    return (int(entry.request_id.rpartition("-")[2]), entry.kind, entry.worker, entry.attempt, entry.detail)


def live_through(ledger: Ledger, batch: Batch) -> None:
    """Three requests: one handed back, lost, answered twice; one refused; one set aside."""
    a, b, c = (f"{batch.id}-{index}" for index in range(3))
    ledger.record([started(a, worker="m1", at=1.0), handed_back(a, worker="m1", at=2.0)])
    ledger.record([started(a, worker="m2", at=3.0), started(b, worker="m1", at=3.5), requeued(a, worker="m2", at=4.0)])
    ledger.record([started(a, worker="m1", attempt=2, at=5.0), finished(a, worker="m1", attempt=2, at=6.0)])
    ledger.record([finished(a, worker="m2", at=7.0, finish_reason="length"), refused(b, worker="m1", at=8.0)])
    ledger.fail(c, POISON, worker="m2")


EVENTS_OF_A_LIFE = [
    (0, "started", "m1", 1, None),
    (0, "handed_back", "m1", 1, None),
    (0, "started", "m2", 1, None),
    (1, "started", "m1", 1, None),
    (0, "requeued", "m2", 1, "lease_lost"),
    (0, "started", "m1", 2, None),
    (0, "finished", "m1", 2, "stop"),
    (0, "late", "m2", 1, "length"),
    (1, "finished", "m1", 1, "context_length_exceeded"),
    (2, "failed", "m2", 0, "worker_lost"),
]


@pytest.mark.parametrize("page", [1, 2, 500])
def test_a_batch_is_told_in_the_order_in_which_the_ledger_heard(
    ledger: Ledger, enter: Enter, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(ledger_module, "PAGE", page)
    other, batch = enter(2), enter(3)
    ledger.record([started(f"{other.id}-0")])
    live_through(ledger, batch)
    entries = list(ledger.history(batch.id))
    assert list(map(told, entries)) == [(index, "queued", "", 0, None) for index in range(3)] + EVENTS_OF_A_LIFE
    assert all(abs(entry.at - batch.created_at) < 60 for entry in entries[:3])
    assert [entry.at for entry in entries[3:12]] == [1.0, 2.0, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0]
    numbers = [entry.number for entry in entries[3:]]
    assert numbers == sorted(set(numbers))
    assert list(ledger.history(batch.id, after=numbers[4])) == entries[8:]


def test_requests_and_kinds_are_chosen(ledger: Ledger, enter: Enter) -> None:
    batch = enter(3)
    live_through(ledger, batch)

    def of(**choice: Any) -> list[tuple[int, str, str, int, str | None]]:
        return list(map(told, ledger.history(batch.id, **choice)))

    assert of(request_ids=[f"{batch.id}-1"]) == [
        (1, "queued", "", 0, None),
        (1, "started", "m1", 1, None),
        (1, "finished", "m1", 1, "context_length_exceeded"),
    ]
    assert of(kinds=["late", "requeued"]) == [EVENTS_OF_A_LIFE[4], EVENTS_OF_A_LIFE[7]]
    assert of(kinds=["queued"], request_ids=[f"{batch.id}-2"]) == [(2, "queued", "", 0, None)]


def test_a_request_that_is_requeued_waits_again(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([started(request, worker="m1"), requeued(request, worker="m2")])
    assert ledger.request(request).state is RequestState.RUNNING  # it is m1 that runs it
    ledger.record([requeued(request, worker="m1")])
    found = ledger.request(request)
    assert (found.state, found.worker, found.started_at) == (RequestState.QUEUED, None, None)


def test_a_bad_line_was_never_queued(ledger: Ledger, enter: Enter) -> None:
    bad = LineError(2, "invalid_json", "no JSON", None)
    batch = enter(lines_=[lines(1)[0], bad])
    assert list(map(told, ledger.history(batch.id))) == [
        (0, "queued", "", 0, None),
        (1, "failed", "", 0, "invalid_json"),
    ]


def test_what_a_command_decides_has_its_reason(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    ledger.record([started(f"{batch.id}-0", worker="m1")])
    ledger.requeued([f"{batch.id}-0"])
    ledger.cancel(batch.id)
    assert list(map(told, ledger.history(batch.id, after=0)))[1:] == [
        (0, "requeued", "m1", 1, "not_in_redis"),
        (0, "cancelled", "", 1, None),
        (1, "cancelled", "", 0, None),
    ]


def test_requests_are_found_by_their_names(ledger: Ledger, enter: Enter) -> None:
    other, batch = enter(2), enter(12)
    assert ledger.requests_named(batch.id, "c11") == [f"{batch.id}-11"]
    assert ledger.requests_named(batch.id, f"{batch.id}-1") == [f"{batch.id}-1"]
    with pytest.raises(NotFoundError, match="neither as an id nor as a custom_id"):
        ledger.requests_named(batch.id, f"{other.id}-1")


def test_the_log_tells_what_was_decided_and_nothing_twice(
    ledger: Ledger, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    batch = enter(4)
    with caplog.at_level(logging.INFO, "cidermill.ledger"):
        live_through(ledger, batch)
        live_through(ledger, batch)
        ledger.cancel(batch.id)
    lines = [(record.message, *getattr(record, FACTS).values()) for record in caplog.records]
    assert lines == [
        ("recorded", f"{batch.id}-0", "m1", 2, "stop"),
        ("late", f"{batch.id}-0", "m2", 1, "length"),
        ("recorded", f"{batch.id}-1", "m1", 1, "context_length_exceeded"),
    ]
