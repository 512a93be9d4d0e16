"""The window of each queue, made small: 6 requests, put there 2 at a time."""

import logging
import random
import threading

import pytest
from recording_station import MODEL, Station, finished, started, wait_until

from api import window
from api.closing import withdraw
from api.dataset.request_line import InputLine
from api.errors import LedgerError
from api.identity import new_batch_id
from api.ledger.connection import writing
from api.ledger.tables import BATCHES
from api.queue import attempts, fullness
from api.queue.marks import Mark, turn
from api.queue.quarantine import QUARANTINE_KEY
from api.queue.requests import SafeQueue, queue_name
from api.schemas import Batch, Priority, RequestBody
from api.set_aside import give_up
from api.states import BatchState
from api.submission import requeue_missing
from api.window import place, top_up


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW", 6)
    monkeypatch.setattr(window, "CHUNK", 2)


def enter(station: Station, count: int, priority: Priority = "normal") -> Batch:
    return station.ledger.create_batch(
        batch_id=new_batch_id(),
        model=MODEL,
        priority=priority,
        input_path="in.jsonl",
        input_sha256="00",
        fingerprint="f",
        output_path=None,
        output_format="jsonl",
        lines=[InputLine(n + 1, f"c{n}", RequestBody(prompt=f"prompt {n}")) for n in range(count)],
    )


def put(station: Station, batch: Batch) -> int:
    return place(station.ledger, station.queue, batch, lambda _: None)


def long_ones(station: Station, count: int, characters: int) -> Batch:
    return station.ledger.create_batch(
        batch_id=new_batch_id(),
        model=MODEL,
        priority="normal",
        input_path="in.jsonl",
        input_sha256="00",
        fingerprint="f",
        output_path=None,
        output_format="jsonl",
        lines=[
            InputLine(n + 1, f"c{n}", RequestBody(prompt=random.Random(n).randbytes(characters // 2).hex()))
            for n in range(count)
        ],
    )


def ids(batch: Batch, *indices: int) -> list[str]:
    return [f"{batch.id}-{index}" for index in indices]


def answer(station: Station, *request_ids: str) -> None:
    """What a worker and the recorder do with requests."""
    for request_id in request_ids:
        job = SafeQueue(f"{MODEL}:normal", station.redis).fetch_job(request_id)
        assert job is not None
        job.delete()
    station.ledger.record([finished(request_id) for request_id in request_ids])


def waiting(station: Station, priority: Priority) -> list[str]:
    return list(SafeQueue(queue_name(MODEL, priority), station.redis).get_job_ids())


def test_no_more_than_the_window_goes_to_redis(station: Station) -> None:
    batch = enter(station, 9)
    told: list[int] = []
    assert place(station.ledger, station.queue, batch, told.append) == 6
    assert told == [2, 4, 6]
    assert station.waiting() == ids(batch, *range(6))
    assert len(list(station.redis.scan_iter("rq:job:*"))) == 6
    assert top_up(station.ledger, station.queue) == 0


def test_the_window_is_topped_up_as_it_empties(station: Station) -> None:
    batch = enter(station, 9)
    put(station, batch)
    answer(station, *ids(batch, 0))
    assert top_up(station.ledger, station.queue) == 0  # a chunk has no room yet
    station.ledger.record([started(ids(batch, 2)[0])])  # it runs: it still counts
    assert top_up(station.ledger, station.queue) == 0
    answer(station, *ids(batch, 1))
    assert top_up(station.ledger, station.queue) == 2
    assert station.waiting() == ids(batch, *range(2, 8))
    answer(station, *ids(batch, 2, 3, 4, 5))
    assert top_up(station.ledger, station.queue) == 1
    assert top_up(station.ledger, station.queue) == 0
    assert station.waiting() == ids(batch, 6, 7, 8)


def test_batches_of_a_queue_take_turns_in_the_order_of_their_submission(station: Station) -> None:
    first, second = enter(station, 7), enter(station, 3)
    put(station, first)
    assert put(station, second) == 0
    answer(station, *ids(first, 0, 1, 2, 3))
    while top_up(station.ledger, station.queue):
        pass
    assert station.waiting() == ids(first, 4, 5, 6) + ids(second, 0, 1)


def test_a_later_batch_of_another_priority_has_a_window_of_its_own(station: Station) -> None:
    low, high = enter(station, 9, "low"), enter(station, 9, "high")
    put(station, low)
    assert put(station, high) == 6
    assert waiting(station, "high") == ids(high, *range(6))
    assert waiting(station, "low") == ids(low, *range(6))


def test_a_batch_that_nobody_placed_in_this_redis_stays_out_of_it(station: Station) -> None:
    enter(station, 3)
    assert top_up(station.ledger, station.queue) == 0
    assert station.waiting() == []


def test_a_crash_before_the_mark_moves_puts_nothing_twice(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = enter(station, 5)

    def crash(batch_id: str, seen: Mark, index: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(station.queue, "move_mark_up", crash)
        with pytest.raises(KeyboardInterrupt):
            put(station, batch)
    assert station.waiting() == ids(batch, 0, 1)
    assert put(station, batch) == 3
    assert station.waiting() == ids(batch, *range(5))


def test_what_redis_has_lost_below_the_mark_is_put_back(station: Station) -> None:
    batch = enter(station, 9)
    put(station, batch)
    station.queue.forget(ids(batch, 1, 4))
    assert requeue_missing(station.ledger, station.queue, batch.id) == 2
    assert station.waiting() == ids(batch, 0, 2, 3, 5, 1, 4)


def test_a_redis_that_has_lost_everything_gets_the_window_again(station: Station) -> None:
    batch = enter(station, 9)
    put(station, batch)
    answer(station, *ids(batch, 0))
    station.redis.flushdb()
    assert top_up(station.ledger, station.queue) == 0  # nobody has said that it goes there
    assert requeue_missing(station.ledger, station.queue, batch.id) == 6
    assert station.waiting() == ids(batch, *range(1, 7))


def test_nothing_of_a_cancelled_batch_is_added(station: Station) -> None:
    batch = enter(station, 9)
    put(station, batch)
    withdraw(station.queue, batch.id, station.ledger.cancel(batch.id))
    assert station.waiting() == []
    assert top_up(station.ledger, station.queue) == 0
    assert list(station.redis.scan_iter("rq:job:*")) == []


@pytest.mark.parametrize(
    ("state", "advice"),
    [(BatchState.VALIDATING, "submit it again"), (BatchState.CANCELLING, "cidermill record.* cancels the rest of it")],
)
def test_a_batch_that_is_not_whole_is_not_placed(station: Station, state: BatchState, advice: str) -> None:
    batch = enter(station, 3)
    with writing(station.ledger.engine, station.ledger.path) as connection:
        connection.execute(BATCHES.update().values(state=state.value))
    with pytest.raises(LedgerError, match=f"batch {batch.id} is {state.value}.*{advice}"):
        requeue_missing(station.ledger, station.queue, batch.id)
    assert top_up(station.ledger, station.queue) == 0
    assert station.waiting() == []


def test_one_process_at_a_time_tops_up_a_queue(station: Station) -> None:
    batch = enter(station, 3)
    station.queue.start_mark(batch.id)
    with turn(station.redis, queue_name(MODEL, "normal"), wait=False) as ours:
        assert ours
        assert top_up(station.ledger, station.queue) == 0
    assert top_up(station.ledger, station.queue) == 2


def test_the_recorder_tops_up_what_it_has_recorded(station: Station) -> None:
    batch = enter(station, 9)
    put(station, batch)
    stop = threading.Event()
    thread = threading.Thread(target=station.recorder().run, args=(stop,))
    thread.start()
    try:
        station.publish(*(finished(request_id) for request_id in ids(batch, 0, 1)))
        wait_until(lambda: station.waiting()[-1:] == ids(batch, 7), "the next two requests")
    finally:
        stop.set()
        thread.join(10)
    # The scripted answers were published without taking the entries; a recorder that has just started removes those.
    assert [one for one in station.waiting() if one not in ids(batch, 0, 1)] == ids(batch, *range(2, 8))


def test_large_requests_end_the_window_by_their_bytes(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes some 22 kB as it is counted, and 12 kB compressed: two fit in 40 kB, a third and fourth not."""
    monkeypatch.setattr(fullness, "QUEUE_BYTES", 40_000)
    batch = long_ones(station, 5, 20_000)
    assert put(station, batch) == 3
    assert waiting(station, "normal") == ids(batch, 0, 1, 2)
    assert top_up(station.ledger, station.queue) == 0
    answer(station, *ids(batch, 0, 1))
    assert top_up(station.ledger, station.queue) == 2
    assert waiting(station, "normal") == ids(batch, 2, 3, 4)


def test_a_request_that_is_larger_than_the_window_goes_alone(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fullness, "QUEUE_BYTES", 5_000)
    batch = long_ones(station, 2, 20_000)
    assert put(station, batch) == 1
    answer(station, *ids(batch, 0))
    station.redis.delete(f"rq:queue:{MODEL}:normal")
    assert top_up(station.ledger, station.queue) == 1
    assert waiting(station, "normal") == ids(batch, 1)


def test_nothing_is_put_into_a_redis_that_is_nearly_full(station: Station) -> None:
    """Neither when a batch is placed, nor later, nor what Redis has lost; and then all of it."""
    earlier = enter(station, 1)
    assert put(station, earlier) == 1
    used = station.redis.info("memory")["used_memory"]
    station.redis.config_set("maxmemory", int(used / 0.85))
    batch = enter(station, 3)
    assert put(station, batch) == 0
    assert top_up(station.ledger, station.queue) == 0
    station.queue.forget(ids(earlier, 0))
    assert put(station, earlier) == 0
    assert [mark.below for mark in station.queue.marks([earlier.id, batch.id]).values()] == [0, 0]
    station.redis.config_set("maxmemory", 1)
    third = enter(station, 1)
    assert put(station, third) == 0
    assert waiting(station, "normal") == []
    station.redis.config_set("maxmemory", 0)
    while top_up(station.ledger, station.queue):
        pass
    assert waiting(station, "normal") == [*ids(earlier, 0), *ids(batch, 0, 1, 2), *ids(third, 0)]


def test_a_nearly_full_redis_is_a_warning_once_and_only_when_there_is_something_to_put(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cidermill.queue")
    there = enter(station, 2)
    put(station, there)
    limit = int(station.redis.info("memory")["used_memory"] / 0.85)
    station.redis.config_set("maxmemory", limit)
    assert put(station, there) == 0
    assert top_up(station.ledger, station.queue) == 0
    assert caplog.text == ""
    batch = enter(station, 3)
    for _ in range(2):
        assert put(station, batch) == 0
        assert top_up(station.ledger, station.queue) == 0
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert f" of {limit} bytes are used, and no requests are put there. The recorder adds them" in warning.getMessage()
    assert "raise maxmemory" in warning.getMessage()
    station.redis.config_set("maxmemory", 0)
    assert top_up(station.ledger, station.queue) == 2
    assert "Redis has room for requests again" in caplog.text
    station.redis.config_set("maxmemory", limit)
    assert top_up(station.ledger, station.queue) == 0
    assert caplog.text.count("Redis is nearly full") == 2


def test_what_a_full_redis_refuses_to_take_back_comes_when_there_is_room(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = enter(station, 5)
    put(station, batch)
    station.queue.forget(ids(batch, 1, 4))
    station.redis.config_set("maxmemory", 1)
    with monkeypatch.context() as patched:
        patched.setattr(station.queue, "room", lambda *_: 10**9)  # there was room when it was asked
        assert put(station, batch) == 0
    assert station.queue.marks([batch.id])[batch.id].below == 1
    station.redis.config_set("maxmemory", 0)
    while top_up(station.ledger, station.queue):
        pass
    assert waiting(station, "normal") == ids(batch, 0, 2, 3, 1, 4)


def test_what_is_set_aside_beyond_a_mark_is_not_queued_anew(station: Station) -> None:
    batch = enter(station, 3)
    put(station, batch)
    failed, damaged = ids(batch, 0, 1)
    attempts.note_lost(station.redis, failed, "mac-1")
    station.fail_in_redis(failed)
    station.redis.lrem(f"rq:queue:{MODEL}:normal", 1, damaged)
    station.redis.hset(QUARANTINE_KEY, damaged, f"{MODEL}:normal")
    station.queue.move_mark_down(batch.id, 0)
    while top_up(station.ledger, station.queue):
        pass
    assert waiting(station, "normal") == ids(batch, 2)
    assert give_up(station.ledger, station.queue, MODEL) == [failed, damaged]
    result = station.ledger.request(failed).result
    assert result is not None
    assert result.error is not None
    assert "1 worker died while running it: mac-1" in result.error.message


def test_many_waiting_batches_are_walked_past_without_asking_for_room(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        put(station, enter(station, 1))
    asked: list[str] = []
    room = station.queue.room
    monkeypatch.setattr(station.queue, "room", lambda *which: asked.append(which[0]) or room(*which))
    assert top_up(station.ledger, station.queue) == 0
    assert asked == []
    put(station, enter(station, 1))
    assert asked == [MODEL]


def test_the_bytes_of_a_long_queue_are_those_of_a_sample(station: Station) -> None:
    """4,000 entries, of which every eighth has 9,000 bytes and the others 1,000: 2,000 bytes on average."""
    with station.redis.pipeline(transaction=False) as pipeline:
        for number in range(4000):
            pipeline.hset(f"rq:job:{number}", "data", "x" * (9000 if number % 8 == 0 else 1000))
            pipeline.rpush(f"rq:queue:{MODEL}:normal", number)
        pipeline.execute()
    taken = fullness.QUEUE_BYTES - station.queue.room(MODEL, "normal")
    assert taken == pytest.approx(4000 * (2000 + fullness.ENTRY_BYTES), rel=0.1)
    station.redis.ltrim(f"rq:queue:{MODEL}:normal", 0, fullness.SAMPLE - 1)
    taken = fullness.QUEUE_BYTES - station.queue.room(MODEL, "normal")
    assert taken == 63 * 9000 + 437 * 1000 + 500 * fullness.ENTRY_BYTES
