import logging
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from recording_station import MODEL, Station, finished, running, started, wait_until
from redis.exceptions import ResponseError
from sqlalchemy import event

from api.dataset.request_line import InputLine
from api.errors import LedgerError, StorageError
from api.identity import new_batch_id
from api.ledger.ledger import Ledger
from api.queue import attempts, results
from api.queue.results import RESULTS_STREAM
from api.recorder import Recorder, reader_of
from api.schemas import RequestBody, RequestCounts
from api.set_aside import give_up
from api.states import BatchState, RequestState

REPOSITORY = Path(__file__).parents[3]


def full_disk(station: Station, spare_pages: int) -> Callable[[], None]:
    """From now on the ledger's file may grow by so many pages; returns what lifts that."""

    def limit(connection: Any, *_: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + spare_pages}")

    def lift() -> None:
        event.remove(station.ledger.engine, "connect", limit)
        station.ledger.engine.dispose()

    station.ledger.engine.dispose()
    event.listen(station.ledger.engine, "connect", limit)
    return lift


def limited_length(station: Station, length: int) -> None:
    """From now on SQLite refuses texts of more bytes, as it does beyond a gigabyte."""

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)

    station.ledger.engine.dispose()
    event.listen(station.ledger.engine, "connect", limit)


def test_a_step_takes_events_home_and_clears_the_stream(station: Station) -> None:
    batch = station.enter(3)
    ids = [f"{batch.id}-{index}" for index in range(3)]
    told: list[str] = []
    recorder = station.recorder(on_finished=told.append)
    station.publish(started(ids[0]), started(ids[1]), finished(ids[1], "four"), finished(ids[2], failed=True))
    assert recorder.step(block_ms=1) == 4
    assert told == [ids[1], ids[2]]
    assert station.ledger.batch(batch.id).counts == RequestCounts(running=1, completed=1, failed=1)
    assert (station.on_stream(), station.unacknowledged()) == (0, 0)
    assert recorder.step(block_ms=1) == 0


def test_an_entry_that_is_no_event_is_logged_and_dropped(station: Station, caplog: pytest.LogCaptureFixture) -> None:
    batch = station.enter(1)
    station.redis.xadd(RESULTS_STREAM, {"event": "{not json"})
    station.publish(finished(f"{batch.id}-0"))
    assert station.recorder().step(block_ms=1) == 2
    assert station.ledger.batch(batch.id).state is BatchState.COMPLETED
    assert station.on_stream() == 0
    assert "is not an event; it is dropped" in caplog.text


def test_two_ledgers_on_one_redis_get_what_is_theirs(station: Station, tmp_path: Path) -> None:
    mine = station.enter(2)
    with Ledger.open(tmp_path / "other" / "ledger.sqlite3") as other:
        batch_id = new_batch_id()
        other.create_batch(
            batch_id=batch_id,
            model=MODEL,
            priority="normal",
            input_path="in.jsonl",
            input_sha256="00",
            fingerprint="f",
            output_path=None,
            output_format="jsonl",
            lines=[InputLine(1, "a", RequestBody(prompt="p"))],
        )
        station.publish(finished(f"{mine.id}-0"), finished(f"{batch_id}-0"), finished(f"{mine.id}-1"))
        recorders = [
            Recorder(ledger, station.queue, reader_of(ledger, station.redis, "r")) for ledger in (station.ledger, other)
        ]
        assert recorders[0].step(block_ms=1) == 3
        assert station.on_stream() == 1
        assert recorders[0].step(block_ms=1) == 0
        assert recorders[1].step(block_ms=1) == 1
        assert station.on_stream() == 0
        assert station.ledger.batch(mine.id).counts == RequestCounts(completed=2)
        assert other.batch(batch_id).counts == RequestCounts(completed=1)


def test_what_another_ledger_has_set_aside_is_left_to_it(station: Station, tmp_path: Path) -> None:
    batch = station.enter(1)
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    station.fail_in_redis(f"{batch.id}-0")
    with Ledger.open(tmp_path / "other" / "ledger.sqlite3") as other:
        assert give_up(other, station.queue, MODEL) == []
    assert give_up(station.ledger, station.queue, MODEL) == [f"{batch.id}-0"]


def test_a_recorder_counts_anew_at_its_start_and_says_what_it_mended(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    batch = station.enter(2)
    with station.ledger.engine.begin() as connection:  # as an older version writes, which keeps no counts
        connection.exec_driver_sql("UPDATE requests SET state = 'completed' WHERE idx = 0")
    station.ledger.record([finished(f"{batch.id}-1")])
    assert station.ledger.batch(batch.id).state is BatchState.IN_PROGRESS
    with running(station.recorder()):
        wait_until(lambda: station.ledger.batch(batch.id).state is BatchState.COMPLETED, "the end of the batch")
    assert station.ledger.batch(batch.id).counts == RequestCounts(completed=2)
    assert f"the counts of batch {batch.id} were wrong" in caplog.text
    assert "mended: -1 queued, +1 completed" in caplog.text


@pytest.mark.faults
def test_a_recorder_killed_between_commit_and_acknowledgement(station: Station) -> None:
    batch = station.enter(2)
    station.reader("run")
    station.publish(started(f"{batch.id}-0"), finished(f"{batch.id}-0"))
    command = [sys.executable, str(Path(__file__).with_name("killed_recorder.py"))]
    command += [station.server.url, str(station.ledger.path)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"committed 2\n"
        child.send_signal(signal.SIGKILL)
        child.wait(20)
    before = station.ledger.request(f"{batch.id}-0")
    assert before.state is RequestState.COMPLETED
    assert (station.on_stream(), station.unacknowledged()) == (2, 2)

    told: list[str] = []
    station.publish(finished(f"{batch.id}-1"))
    recorder = station.recorder(consumer="run", on_finished=told.append)
    wait_until(lambda: recorder.step(block_ms=1) == 0, "the end of the stream")
    assert told == [f"{batch.id}-1"]
    assert station.ledger.request(f"{batch.id}-0") == before
    assert station.happened(f"{batch.id}-0") == ["started", "finished"]
    assert (station.on_stream(), station.unacknowledged()) == (0, 0)


def test_entries_of_a_recorder_that_never_acknowledged_are_taken_over(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "DEAD_CONSUMER_IDLE_MS", 0)
    batch = station.enter(1)
    station.publish(finished(f"{batch.id}-0"))
    assert len(station.reader("dead").read(block_ms=1)) == 1
    assert station.recorder(consumer="alive").step(block_ms=1) == 1
    assert station.ledger.batch(batch.id).counts == RequestCounts(completed=1)
    assert station.unacknowledged() == 0


def test_two_recorders_at_once_record_everything_once(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take each other's entries all the time, as after a pause longer than the idle time."""
    monkeypatch.setattr(results, "DEAD_CONSUMER_IDLE_MS", 0)
    batch = station.enter(120)
    told: list[str] = []
    recorders = [station.recorder(consumer=name, on_finished=told.append) for name in ("one", "two")]
    ids = [f"{batch.id}-{index}" for index in range(120)]
    station.publish(*(make(request_id) for request_id in ids for make in (started, finished)))

    def drain(recorder: Recorder) -> None:
        wait_until(lambda: recorder.step(block_ms=1) == 0 and station.on_stream() == 0, "the end of the stream")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(drain, recorder) for recorder in recorders]:
            done.result(30)
    assert sorted(told) == sorted(ids)
    assert station.ledger.batch(batch.id).counts == RequestCounts(completed=120)
    assert [station.happened(request_id) for request_id in ids] == [["started", "finished"]] * 120


def test_what_the_ledger_cannot_hold_is_dropped_alone(station: Station, caplog: pytest.LogCaptureFixture) -> None:
    batch = station.enter(3)
    ids = [f"{batch.id}-{index}" for index in range(3)]
    limited_length(station, 10_000)
    told: list[str] = []
    recorder = station.recorder(on_finished=told.append)
    station.publish(started(ids[0], worker="m" * 20_000), finished(ids[0]))
    station.publish(finished(ids[1], "x" * 20_000), finished(ids[2], worker="m" * 20_000))
    assert recorder.step(block_ms=1) == 4
    assert station.on_stream() == 0
    assert told == ids
    assert station.ledger.batch(batch.id).counts == RequestCounts(completed=1, failed=2)
    assert [station.happened(request_id) for request_id in ids] == [["finished"]] * 3
    for request_id, worker in ((ids[1], "mac-1"), (ids[2], "m" * 255)):
        row = station.ledger.request(request_id)
        assert row.result is not None
        assert row.result.error is not None
        assert row.result.error.code == "invalid_result"
        assert f"the result of worker {worker} was refused" in row.result.error.message
    assert f"started of '{ids[0]}' is dropped" in caplog.text
    assert f"finished of '{ids[1]}' is dropped" in caplog.text


def test_a_ledger_without_a_table_drops_no_result(station: Station) -> None:
    batch = station.enter(1)
    station.publish(finished(f"{batch.id}-0"))
    with station.ledger.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE tallies RENAME TO gone")
    with pytest.raises(LedgerError, match="no such table"):
        station.recorder().step(block_ms=1)
    assert (station.on_stream(), station.unacknowledged()) == (1, 1)
    with station.ledger.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO tallies")
    assert station.recorder().step(block_ms=1) == 1
    assert station.ledger.batch(batch.id).counts == RequestCounts(completed=1)


def test_what_cannot_be_recorded_stops_no_other_duty(
    station: Station, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, overdue, waiting = station.enter(1), station.enter(1, expires_at=time.time() - 1), station.enter(1)
    station.publish(finished(f"{answered.id}-0"))
    station.queue.start_mark(waiting.id)

    def locked(_: object) -> list[str]:
        raise LedgerError("the ledger is locked")

    monkeypatch.setattr(station.ledger, "record", locked)
    with running(station.recorder()):
        wait_until(lambda: station.ledger.batch(overdue.id).counts.expired, "the deadline")
        wait_until(lambda: station.waiting() == [f"{waiting.id}-0"], "the window")
        wait_until(lambda: "recording pauses, nothing is lost; next try in about 0.5 s" in caplog.text, "the complaint")
        assert station.on_stream() == 1
        monkeypatch.undo()
        wait_until(lambda: station.ledger.batch(answered.id).counts.completed, "the record")


def test_another_duty_that_fails_does_not_stop_recording(
    station: Station, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = station.enter(1)

    def broken(*_: object) -> None:
        raise ResponseError("ERR broken")

    for name in ("expire_overdue", "top_up"):
        monkeypatch.setattr(f"api.recorder.{name}", broken)
    with running(station.recorder()):
        wait_until(lambda: "topping up pauses, nothing is lost" in caplog.text, "the complaint")
        station.publish(finished(f"{batch.id}-0"))
        wait_until(lambda: station.ledger.batch(batch.id).counts.completed, "the record")
    assert "expiry pauses, nothing is lost; next try in about 0.5 s: ERR broken" in caplog.text


def test_a_queue_that_cannot_be_cleaned_keeps_nothing_from_being_set_aside(station: Station) -> None:
    batch = station.enter(1)
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    station.fail_in_redis(f"{batch.id}-0")
    station.redis.set(f"rq:wip:{MODEL}:high", "forged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        station.recorder().housekeeping()
    assert station.ledger.batch(batch.id).counts == RequestCounts(failed=1)


def test_a_full_disk_keeps_the_entries_and_records_nothing_half(station: Station) -> None:
    batch = station.enter(2)
    recorder = station.recorder()
    station.publish(started(f"{batch.id}-0"), finished(f"{batch.id}-0", "x" * 100_000), finished(f"{batch.id}-1"))
    lift = full_disk(station, spare_pages=3)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"cannot grow: the disk is full; free space and try again"):
            recorder.step(block_ms=1)
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=2)
    assert (station.on_stream(), station.unacknowledged()) == (3, 3)
    lift()
    assert recorder.step(block_ms=1) == 3
    assert station.ledger.batch(batch.id).state is BatchState.COMPLETED
    assert station.on_stream() == 0


def test_a_running_recorder_waits_for_space_and_says_so(station: Station, caplog: pytest.LogCaptureFixture) -> None:
    batch = station.enter(1)
    lift = full_disk(station, spare_pages=3)
    station.publish(finished(f"{batch.id}-0", "x" * 100_000))
    with caplog.at_level(logging.WARNING, "cidermill.recorder"), running(station.recorder()):
        wait_until(lambda: "the disk is full; free space and try again" in caplog.text, "the complaint")
        assert station.on_stream() == 1
        lift()
        wait_until(lambda: station.ledger.batch(batch.id).counts.completed, "the record")
        wait_until(lambda: "recording goes on" in caplog.text, "the good news")
    assert "recording pauses, nothing is lost; next try in about 0.5 s" in caplog.text
    assert station.on_stream() == 0


@pytest.mark.faults
def test_a_running_recorder_outlives_the_death_of_redis(station: Station, caplog: pytest.LogCaptureFixture) -> None:
    batch = station.enter(2)
    with running(station.recorder()):
        station.publish(finished(f"{batch.id}-0"))
        wait_until(lambda: station.ledger.batch(batch.id).counts.completed == 1, "the first record")
        station.kill_server()
        wait_until(lambda: "recording pauses, nothing is lost" in caplog.text, "the complaint")
        station.start_server()
        station.publish(finished(f"{batch.id}-1"))
        wait_until(lambda: station.ledger.batch(batch.id).counts.completed == 2, "the second record")


def test_requests_that_are_set_aside_fail_with_the_reason(station: Station) -> None:
    batch = station.enter(2)
    ids = [f"{batch.id}-{index}" for index in range(2)]
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    for worker in ("mac-1", "mac-2"):
        attempts.note_lost(station.redis, ids[0], worker)
    station.fail_in_redis(ids[0])
    told: list[str] = []
    recorder = station.recorder(on_finished=told.append)
    recorder.housekeeping()

    assert told == [ids[0]]
    row = station.ledger.request(ids[0])
    assert row.state is RequestState.FAILED
    assert row.result is not None
    assert row.result.error is not None
    assert row.result.error.code == "worker_lost"
    assert row.result.error.message == "the request was set aside: 2 workers died while running it: mac-1, mac-2"
    assert station.queue.set_aside(MODEL) == []
    assert station.waiting() == [ids[1]]
    recorder.housekeeping()
    assert told == [ids[0]]


def test_a_result_that_came_before_the_request_was_set_aside_stays(station: Station) -> None:
    batch = station.enter(1)
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    other = station.enter(1)
    station.publish(finished(f"{batch.id}-0"))
    station.fail_in_redis(f"{batch.id}-0")
    recorder = station.recorder()
    recorder.step(block_ms=1)
    recorder.housekeeping()
    assert station.ledger.request(f"{batch.id}-0").state is RequestState.COMPLETED
    assert station.ledger.batch(other.id).counts == RequestCounts(queued=1)
    assert station.queue.set_aside(MODEL) == []


def test_a_full_disk_leaves_a_request_set_aside_for_later(station: Station) -> None:
    batch = station.enter(1)
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    attempts.note_lost(station.redis, f"{batch.id}-0", "m" * 100_000)
    station.fail_in_redis(f"{batch.id}-0")
    lift = full_disk(station, spare_pages=3)
    recorder = station.recorder()
    with pytest.raises(StorageError):
        recorder.housekeeping()
    assert [entry.request_id for entry in station.queue.set_aside(MODEL)] == [f"{batch.id}-0"]
    lift()
    recorder.housekeeping()
    assert station.ledger.request(f"{batch.id}-0").state is RequestState.FAILED


def test_housekeeping_brings_back_what_a_dead_worker_held(station: Station) -> None:
    """A request whose id stands in the intermediate list alone: its worker died right after taking it."""
    batch = station.enter(1)
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    queue_key = f"rq:queue:{MODEL}:normal"
    station.redis.lmove(queue_key, f"{queue_key}:intermediate", "LEFT", "RIGHT")
    assert station.waiting() == []
    recorder = station.recorder()
    recorder.housekeeping()
    (first_seen,) = station.redis.scan_iter("*first_seen*")
    station.redis.expire(first_seen, 3000)  # of an hour: it was seen ten minutes ago
    recorder.housekeeping()
    assert station.waiting() == [f"{batch.id}-0"]
