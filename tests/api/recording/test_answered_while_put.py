"""A worker that Redis forgot answers a request at the moment at which it is put back."""

from collections.abc import Callable
from typing import Any

import pytest
from recording_station import MODEL, Station, finished

from api.submission import requeue_missing


@pytest.fixture
def batch_id(station: Station) -> str:
    return station.enter(4).id


def before_enqueue(station: Station, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    enqueue = station.queue.enqueue

    def enqueue_after_that(*arguments: Any, **named: Any) -> int:
        act()
        return enqueue(*arguments, **named)

    monkeypatch.setattr(station.queue, "enqueue", enqueue_after_that)


def test_what_was_answered_or_recorded_meanwhile_is_taken_out_again(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{batch_id}-{index}" for index in range(4)]

    def act() -> None:
        station.publish(finished(ids[0]))
        station.ledger.record([finished(ids[2])])

    before_enqueue(station, monkeypatch, act)
    assert requeue_missing(station.ledger, station.queue, batch_id) == 2
    assert station.waiting() == [ids[1], ids[3]]
    assert station.ledger.final(ids) == {ids[2]}


def test_what_was_cancelled_meanwhile_is_taken_out_again(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_enqueue(station, monkeypatch, lambda: station.ledger.cancel(batch_id))
    assert requeue_missing(station.ledger, station.queue, batch_id) == 0
    assert station.waiting() == []
    assert station.queue.set_aside(MODEL) == []
