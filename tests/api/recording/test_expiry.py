"""Deadlines, as the recorder and those who put requests on the queue keep them. No test waits for one to pass."""

import time

import pytest
from recording_station import MODEL, Station, finished, running, started, wait_until
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer

from api import window
from api.closing import cancel, expire_overdue, go_on_cancelling
from api.ledger import ledger as ledgers
from api.ledger import recording
from api.queue.deadlines import seconds_left
from api.queue.requests import SafeJob, cancel_key
from api.queue.results import publish_result
from api.schemas import Batch, RequestCounts, RequestEvent
from api.states import BatchState, RequestState
from api.submission import requeue_missing
from api.window import place, top_up

HOUR = 3600.0


def ids(batch: Batch, *indices: int) -> list[str]:
    return [f"{batch.id}-{index}" for index in indices]


def put(station: Station, batch: Batch) -> int:
    return place(station.ledger, station.queue, batch, lambda _: None)


def let_pass(station: Station, batch: Batch) -> None:
    """The deadline of the batch is over, for the ledger; entries in Redis keep theirs."""
    with station.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batches SET expires_at = ? WHERE id = ?", (time.time() - 1, batch.id))


def deadline_in_redis(station: Station, request_id: str) -> float:
    job = SafeJob.fetch(request_id, connection=station.redis, serializer=JSONSerializer)
    return float(job.args[0]["expires_at"])


def expired(request_id: str) -> RequestEvent:
    return RequestEvent(kind="expired", request_id=request_id, worker="mac-1", attempt=1, at=time.time())


def test_what_is_open_of_an_overdue_batch_expires_in_the_ledger_and_leaves_redis(station: Station) -> None:
    overdue, other = station.enter(4, expires_at=time.time() + HOUR), station.enter(1)
    put(station, overdue)
    put(station, other)
    station.ledger.record([started(ids(overdue, 0)[0]), finished(ids(overdue, 1)[0]), finished(ids(overdue, 2)[0])])
    assert expire_overdue(station.ledger, station.queue) == []
    let_pass(station, overdue)
    assert expire_overdue(station.ledger, station.queue) == ids(overdue, 0, 3)
    after = station.ledger.batch(overdue.id)
    assert (after.state, after.counts) == (BatchState.EXPIRED, RequestCounts(completed=2, expired=2))
    assert after.finished_at is not None
    assert station.happened(ids(overdue, 0)[0]) == ["started", "expired"]
    assert station.ledger.request(ids(overdue, 0)[0]).result is None
    # The answered two were not taken off the queue here, as a worker would have done.
    assert station.waiting() == ids(overdue, 1, 2) + ids(other, 0)
    assert station.redis.exists(cancel_key(overdue.id)) == 1
    assert station.redis.exists(cancel_key(other.id)) == 0
    assert station.ledger.batch(other.id).counts == RequestCounts(queued=1)
    assert expire_overdue(station.ledger, station.queue) == []


def test_a_batch_that_was_answered_in_time_is_completed(station: Station) -> None:
    batch = station.enter(2, expires_at=time.time() + HOUR)
    station.ledger.record([finished(request_id) for request_id in ids(batch, 0, 1)])
    let_pass(station, batch)
    assert expire_overdue(station.ledger, station.queue) == []
    assert station.ledger.batch(batch.id).state is BatchState.COMPLETED


def test_a_result_that_has_come_by_the_deadline_counts_and_a_later_one_does_not(station: Station) -> None:
    batch = station.enter(2, expires_at=time.time() + HOUR)
    put(station, batch)
    in_time, late = ids(batch, 0, 1)
    publish_result(station.redis, finished(in_time, "in time"))
    let_pass(station, batch)
    assert expire_overdue(station.ledger, station.queue) == [late]
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=1, expired=1)
    publish_result(station.redis, finished(late, "too late"))
    assert station.recorder().step(block_ms=1) == 2
    after = station.ledger.batch(batch.id)
    assert (after.state, after.counts) == (BatchState.EXPIRED, RequestCounts(completed=1, expired=1))
    result = station.ledger.request(in_time).result
    assert result is not None
    assert result.text == "in time"
    assert station.ledger.request(late).result is None
    assert station.happened(late) == ["expired", "late"]


def test_a_workers_word_that_a_deadline_has_passed_closes_the_request(station: Station) -> None:
    told: list[str] = []
    batch = station.enter(2, expires_at=time.time() + HOUR)
    first, second = ids(batch, 0, 1)
    word = expired(first)
    station.publish(started(first), word, word, finished(first), finished(second), expired(second))
    assert station.recorder(on_finished=told.append).step(block_ms=1) == 6
    assert told == [first, second]
    after = station.ledger.batch(batch.id)
    assert (after.state, after.counts) == (BatchState.EXPIRED, RequestCounts(completed=1, expired=1))
    row = station.ledger.request(first)
    assert (row.state, row.result, row.worker) == (RequestState.EXPIRED, None, "mac-1")
    assert station.happened(first) == ["started", "expired", "late"]
    assert station.happened(second) == ["finished", "late"]
    stats = station.ledger.stats(batch.id)
    assert (stats.counts.expired, stats.failures) == (1, {})


def test_resume_puts_nothing_back_that_has_expired_or_is_overdue(station: Station) -> None:
    batch = station.enter(3, expires_at=time.time() + HOUR)
    put(station, batch)
    station.queue.forget(ids(batch, 0, 1))
    let_pass(station, batch)
    assert requeue_missing(station.ledger, station.queue, batch.id) == 0
    assert station.waiting() == []
    assert station.ledger.batch(batch.id).state is BatchState.EXPIRED
    assert requeue_missing(station.ledger, station.queue, batch.id) == 0


def test_entries_carry_the_deadline_by_the_servers_clock(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    here = time.time
    # The clock of the ledger's machine is an hour behind that of the server.
    monkeypatch.setattr(time, "time", lambda: here() - HOUR)
    batch, free = station.enter(1, expires_at=time.time() + 100), station.enter(1)
    put(station, batch)
    put(station, free)
    monkeypatch.undo()
    deadline = deadline_in_redis(station, ids(batch, 0)[0])
    assert 90 < deadline - here() <= 101
    assert 90 < seconds_left(station.redis, deadline) <= 101
    job = SafeJob.fetch(ids(free, 0)[0], connection=station.redis, serializer=JSONSerializer)
    assert "expires_at" not in job.args[0]


def test_of_a_large_batch_only_what_was_put_into_redis_is_looked_for_there(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "WINDOW", 4)
    monkeypatch.setattr(window, "CHUNK", 2)
    batch = station.enter(9, expires_at=time.time() + HOUR)
    put(station, batch)
    looked_for: list[str] = []
    withdraw = station.queue.withdraw

    def note(request_ids: list[str], *, batch_id: str) -> None:
        looked_for.extend(request_ids)
        withdraw(request_ids, batch_id=batch_id)

    monkeypatch.setattr(station.queue, "withdraw", note)
    let_pass(station, batch)
    assert expire_overdue(station.ledger, station.queue) == ids(batch, *range(9))
    assert looked_for == ids(batch, *range(4))
    assert station.waiting() == []
    assert top_up(station.ledger, station.queue) == 0


def test_what_a_cut_short_cancellation_has_left_open_expires_and_the_batch_is_cancelled(station: Station) -> None:
    batch = station.enter(1, expires_at=time.time() + HOUR)
    with station.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batches SET state = 'cancelling'")
    let_pass(station, batch)
    assert expire_overdue(station.ledger, station.queue) == ids(batch, 0)
    assert station.ledger.batch(batch.id).state is BatchState.CANCELLED


def test_a_recorder_that_runs_expires_by_itself(station: Station) -> None:
    batch = station.enter(2, expires_at=time.time() + 0.2)
    put(station, batch)
    with running(station.recorder()):
        wait_until(lambda: station.ledger.batch(batch.id).state is BatchState.EXPIRED, "the deadline")
    assert station.queue.depth(MODEL)["normal"] == 0


def test_nothing_expires_while_redis_cannot_tell_what_is_answered(station: Station) -> None:
    batch = station.enter(1, expires_at=time.time() - 1)
    station.kill_server()
    with pytest.raises(RedisError):
        expire_overdue(station.ledger, station.queue)
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=1)


def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests at once, in two statements each."""
    monkeypatch.setattr(recording, "CHUNK", 2)
    monkeypatch.setattr(ledgers, "CLOSED_AT_ONCE", 4)


def test_a_large_batch_expires_in_steps_and_what_is_recorded_in_between_stays(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_steps(monkeypatch)
    batch = station.enter(10, expires_at=time.time() + HOUR)
    put(station, batch)
    let_pass(station, batch)
    assert expire_overdue(station.ledger, station.queue) == ids(batch, *range(4))
    between = station.ledger.batch(batch.id)
    assert (between.state, between.counts) == (BatchState.IN_PROGRESS, RequestCounts(queued=6, expired=4))
    station.ledger.record([finished(ids(batch, 5)[0])])
    assert expire_overdue(station.ledger, station.queue) == ids(batch, 4, 6, 7, 8)
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=1, completed=1, expired=8)
    assert expire_overdue(station.ledger, station.queue) == ids(batch, 9)
    after = station.ledger.batch(batch.id)
    assert (after.state, after.counts) == (BatchState.EXPIRED, RequestCounts(completed=1, expired=9))
    assert expire_overdue(station.ledger, station.queue) == []


def test_resume_lets_all_of_a_large_overdue_batch_expire(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    in_steps(monkeypatch)
    batch = station.enter(10, expires_at=time.time() - 1)
    assert requeue_missing(station.ledger, station.queue, batch.id) == 0
    assert station.ledger.batch(batch.id).counts == RequestCounts(expired=10)


def test_who_cancels_stops_the_workers_before_the_first_step(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    in_steps(monkeypatch)
    batch, steps = station.enter(10), station.ledger.cancel
    put(station, batch)
    seen: list[tuple[int, RequestCounts]] = []

    def interrupted(batch_id: str) -> list[str]:
        seen.append((station.redis.exists(cancel_key(batch_id)), station.ledger.batch(batch_id).counts))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return steps(batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(station.ledger, "cancel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cancel(station.ledger, station.queue, batch.id)
    assert seen == [(1, RequestCounts(queued=10)), (1, RequestCounts(queued=6, cancelled=4))]
    between = station.ledger.batch(batch.id)
    assert (between.state, between.counts) == (BatchState.CANCELLING, RequestCounts(queued=6, cancelled=4))
    assert station.waiting() == ids(batch, *range(4, 10))
    cancel(station.ledger, station.queue, batch.id)
    after = station.ledger.batch(batch.id)
    assert (after.state, after.counts) == (BatchState.CANCELLED, RequestCounts(cancelled=10))
    assert station.waiting() == []
    cancel(station.ledger, None, batch.id)
    assert station.ledger.batch(batch.id) == after


def test_the_recorder_goes_on_with_a_cancellation_that_was_cut_short(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_steps(monkeypatch)
    batch, other = station.enter(10), station.enter(1)
    put(station, batch)
    put(station, other)
    assert go_on_cancelling(station.ledger, station.queue) == []
    station.ledger.record([finished(ids(batch, 2)[0])])
    station.ledger.begin_cancelling(batch.id)
    assert station.redis.exists(cancel_key(batch.id)) == 0
    assert go_on_cancelling(station.ledger, station.queue) == ids(batch, 0, 1, 3, 4)
    assert station.redis.exists(cancel_key(batch.id)) == 1
    assert station.waiting() == ids(batch, 2, *range(5, 10)) + ids(other, 0)
    # The command is there still, and does the next step.
    assert station.ledger.cancel(batch.id) == ids(batch, *range(5, 9))
    assert go_on_cancelling(station.ledger, station.queue) == ids(batch, 9)
    after = station.ledger.batch(batch.id)
    assert (after.state, after.counts) == (BatchState.CANCELLED, RequestCounts(completed=1, cancelled=9))
    assert go_on_cancelling(station.ledger, station.queue) == []
    cancel(station.ledger, station.queue, batch.id)
    assert station.ledger.batch(batch.id) == after
    assert station.ledger.batch(other.id).counts == RequestCounts(queued=1)


def test_a_recorder_that_runs_ends_a_cancellation_by_itself(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    in_steps(monkeypatch)
    batch = station.enter(10)
    put(station, batch)
    station.ledger.begin_cancelling(batch.id)
    with running(station.recorder()):
        wait_until(lambda: station.ledger.batch(batch.id).state is BatchState.CANCELLED, "the cancellation")
    assert station.ledger.batch(batch.id).counts == RequestCounts(cancelled=10)
    assert station.waiting() == []
