"""What happens to requests at the moment at which they are put: answers, a cancellation, a server that loses them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from recording_station import MODEL, Station, finished

from api import window
from api.closing import cancel
from api.errors import QueueError
from api.ledger.ledger import Ledger
from api.queue import entries
from api.queue.marks import Mark, turn_key
from api.queue.requests import RequestQueue, queue_name
from api.queue.results import publish_result
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


def while_put(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """act: told how often it was called; between the look at what is settled and the release."""
    settled = window._settled
    calls = 0

    def settled_then(ledger: Ledger, queue: RequestQueue, request_ids: Sequence[str]) -> set[str]:
        nonlocal calls
        found = settled(ledger, queue, request_ids)
        calls += 1
        act(calls)
        return found

    monkeypatch.setattr(window, "_settled", settled_then)


def test_an_answer_between_look_and_release_ends_the_request(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{batch_id}-{index}" for index in range(4)]
    while_put(monkeypatch, lambda _: publish_result(station.redis, finished(ids[1])))
    assert requeue_missing(station.ledger, station.queue, batch_id) == 3
    assert station.waiting() == [ids[0], ids[2], ids[3]]


def test_entries_that_vanish_between_look_and_release_are_put_again(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{batch_id}-{index}" for index in range(4)]

    def vanish(calls: int) -> None:
        if calls == 1:
            station.redis.delete(*(f"rq:job:{request_id}" for request_id in ids[1:3]))

    while_put(monkeypatch, vanish)
    assert requeue_missing(station.ledger, station.queue, batch_id) == 4
    assert station.waiting() == [ids[0], ids[3], ids[1], ids[2]]


def test_entries_that_always_vanish_are_an_error_and_the_mark_stays(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_put(monkeypatch, lambda _: station.redis.delete(f"rq:job:{batch_id}-2"))
    with pytest.raises(QueueError, match=f"entries of queue {MODEL}:normal vanish from Redis"):
        requeue_missing(station.ledger, station.queue, batch_id)
    assert station.queue.marks([batch_id])[batch_id].below == 0


def test_a_server_that_is_emptied_while_requests_are_put_gets_all_of_them(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder makes the mark anew before the one that puts them has moved it."""
    monkeypatch.setattr(window, "CHUNK", 2)
    batch_id = station.enter(8).id
    recorder = station.recorder()
    recorder.reconcile()

    def empty(calls: int) -> None:
        if calls == 3:
            station.redis.flushall()
            recorder.reconcile()

    while_put(monkeypatch, empty)
    requeue_missing(station.ledger, station.queue, batch_id)
    while window.top_up(station.ledger, station.queue):
        pass
    assert sorted(station.waiting()) == [f"{batch_id}-{index}" for index in range(8)]


def test_who_overran_their_turn_leaves_what_others_have_put(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{batch_id}-{index}" for index in range(4)]
    slow = RequestQueue(station.redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
    enter = entries.enter

    def enter_late(*arguments: Any) -> list[str]:
        monkeypatch.setattr(entries, "enter", enter)
        station.redis.delete(turn_key(queue_name(MODEL, "normal")))
        requeue_missing(station.ledger, station.queue, batch_id)
        station.redis.hset(f"rq:job:{ids[0]}", "taken", 1)
        return enter(*arguments)

    monkeypatch.setattr(entries, "enter", enter_late)
    assert requeue_missing(station.ledger, slow, batch_id) == 0
    assert station.waiting() == ids
    assert station.redis.hget(f"rq:job:{ids[0]}", "taken") == b"1"  # the entry that was there


@pytest.mark.parametrize("below", [0, 4], ids=["beyond the mark", "below the mark"])
def test_what_is_cancelled_between_look_and_release_is_gone(
    station: Station, batch_id: str, monkeypatch: pytest.MonkeyPatch, below: int
) -> None:
    """As by another process, which sees the mark before or after it is moved."""
    mark = Mark(below, b"")

    def cancelled(calls: int) -> None:
        if calls == 1:
            with monkeypatch.context() as patched:
                patched.setattr(station.queue, "marks", lambda _: {batch_id: mark})
                cancel(station.ledger, station.queue, batch_id)

    while_put(monkeypatch, cancelled)
    requeue_missing(station.ledger, station.queue, batch_id)
    assert station.waiting() == []
    assert station.redis.keys("rq:job:*") == []
