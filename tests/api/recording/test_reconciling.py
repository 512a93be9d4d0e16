"""A server that forgot everything, or something, and recorders that mend it. The window is 6 requests, 2 at a time."""

import logging
import time
from pathlib import Path

import pytest
from recording_station import MODEL, Station, finished, running, wait_until
from redis import Redis
from redis.exceptions import RedisError
from rq.executions import Execution

from api import recorder as recording
from api import window
from api.closing import cancel
from api.ledger.ledger import Ledger
from api.queue.connection import address
from api.queue.marks import mark_key, turn_key
from api.queue.requests import RequestQueue
from api.queue.results import RESULTS_STREAM, publish_result
from api.queue.safe_queue import SafeQueue
from api.queue.server import PrivateServer
from api.reconciling import REMINDER_SECONDS, Reminders, forgotten, reconcile
from api.recorder import Recorder, reader_of
from api.schemas import Batch, RequestCounts
from api.states import RequestState
from api.submission import requeue_missing
from api.window import place, top_up


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW", 6)
    monkeypatch.setattr(window, "CHUNK", 2)


def ids(batch: Batch, *indices: int) -> list[str]:
    return [f"{batch.id}-{index}" for index in indices]


def placed(station: Station, count: int) -> Batch:
    batch = station.enter(count)
    place(station.ledger, station.queue, batch, lambda _: None)
    return batch


def test_a_recorder_that_starts_on_an_emptied_server_queues_what_is_open(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    batch = placed(station, 9)
    station.ledger.record([finished(ids(batch, 1)[0])])
    station.redis.flushall()
    with running(Recorder(station.ledger, station.queue, reader_of(station.ledger, station.redis, "r"))):
        wait_until(lambda: station.waiting() == ids(batch, 0, 2, 3, 4, 5, 6), "the window")
    assert f"Redis does not know batch {batch.id} any more: what is open of it is queued again" in caplog.text
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=8, completed=1)


def test_a_server_that_is_emptied_under_a_recorder_gets_its_window_again(station: Station) -> None:
    batch = placed(station, 9)
    with running(station.recorder()):
        publish_result(station.redis, finished(ids(batch, 0)[0]))
        wait_until(lambda: station.ledger.batch(batch.id).counts.completed, "the first record")
        station.redis.flushall()
        # The recorder may be looking just then what is missing, and put that back before the others.
        wait_until(lambda: sorted(station.waiting()) == ids(batch, *range(1, 7)), "the window")
        publish_result(station.redis, finished(ids(batch, 1)[0]))
        wait_until(lambda: station.ledger.batch(batch.id).counts.completed == 2, "the second record")


def test_what_a_server_has_lost_when_it_was_started_again_is_put_back(station: Station) -> None:
    """As after a loss of power, which takes the last second: the mark is there, and some requests below it are not."""
    batch = placed(station, 4)
    recorder = station.recorder()
    recorder.reconcile()
    station.queue.forget(ids(batch, 1, 3))
    recorder.reconcile()
    assert station.waiting() == ids(batch, 0, 2)
    station.kill_server()
    station.server = PrivateServer.start(station.data_dir)
    wait_until(station.redis.ping, "the server")
    recorder.reconcile()
    assert top_up(station.ledger, station.queue) == 2
    assert station.waiting() == ids(batch, 0, 2, 1)
    assert top_up(station.ledger, station.queue) == 1
    assert station.waiting() == ids(batch, 0, 2, 1, 3)


def test_what_a_server_that_was_set_back_holds_of_closed_requests_is_removed(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss of power takes the last second, and what was answered in it waits, or runs, again."""
    caplog.set_level(logging.INFO, "cidermill.recorder")
    caplog.set_level(logging.INFO, "cidermill.recorder")
    batch = placed(station, 4)
    recorder = station.recorder()
    recorder.reconcile()
    queue = SafeQueue(f"{MODEL}:normal", station.redis)
    found = SafeQueue.dequeue_any([queue], None, station.redis)
    assert found is not None
    job, _ = found
    with station.redis.pipeline() as pipeline:
        execution = Execution.create(job, 60, pipeline, worker_name="w")
        job.prepare_for_execution("w", pipeline)
        pipeline.execute()
    station.redis.zadd(queue.started_job_registry.key, {execution.composite_key: time.time() + 60})
    station.ledger.record([finished(request_id) for request_id in ids(batch, 0, 1, 2)])
    station.redis.set("rq:queue:forged:low", 1)
    station.redis.sadd("rq:queues", "rq:queue:forged:low", b"\xff")
    station.kill_server()
    station.server = PrivateServer.start(station.data_dir)
    wait_until(station.redis.ping, "the server")
    recorder.reconcile()
    assert station.waiting() == ids(batch, 3)
    assert station.redis.zcard(queue.started_job_registry.key) == 0
    assert sum(int(record.args[0]) for record in caplog.records if "closed in the ledger" in record.getMessage()) == 3


def test_what_is_closed_while_the_mark_is_low_is_taken_out_now_and_then(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "RECONCILING_AGAIN_SECONDS", -1.0)
    batch = placed(station, 4)
    recorder = station.recorder()
    station.queue.forget(ids(batch, 0))
    recorder.reconcile()
    cancel(station.ledger, station.queue, batch.id)
    assert station.waiting() == ids(batch, 1, 2, 3)
    recorder.reconcile()
    assert station.waiting() == []
    assert station.redis.keys("rq:job:*") == []


def test_answers_that_went_with_the_results_stream_are_asked_for_again(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    batch = placed(station, 3)
    recorder = station.recorder()
    recorder.reconcile()
    publish_result(station.redis, finished(ids(batch, 1)[0]))
    station.redis.lrem(f"rq:queue:{MODEL}:normal", 0, ids(batch, 1)[0])  # as the worker that took it did
    station.redis.delete(RESULTS_STREAM)
    recorder.reconcile()
    assert station.waiting() == ids(batch, 0, 2)  # nobody has noticed yet
    assert recorder.step(block_ms=1) == 0
    recorder.reconcile()
    assert top_up(station.ledger, station.queue) == 2
    assert station.waiting() == ids(batch, 0, 2, 1)
    assert f"Redis had lost 1 requests of batch {batch.id}: they are queued again" in caplog.text


def test_a_batch_that_redis_was_away_for_is_placed_when_it_is_back(station: Station) -> None:
    batch = station.enter(3)
    station.kill_server()
    with pytest.raises(RedisError):
        place(station.ledger, station.queue, batch, lambda _: None)
    station.start_server()
    with running(station.recorder()):
        wait_until(lambda: station.waiting() == ids(batch, 0, 1, 2), "the window")


@pytest.mark.parametrize("kind", ["text", "list"])
def test_nonsense_in_place_of_a_mark_stops_no_recorder(station: Station, kind: str) -> None:
    forged, other = placed(station, 3), station.enter(2)
    station.queue.forget(ids(forged, 1))
    station.redis.delete(mark_key(forged.id))
    if kind == "text":
        station.redis.set(mark_key(forged.id), "abc")
    else:
        station.redis.rpush(mark_key(forged.id), "abc")
    station.redis.set(turn_key(f"{MODEL}:normal"), "x")
    with running(station.recorder()):
        wait_until(lambda: station.waiting() == ids(forged, 0, 2, 1), "the window")
        place(station.ledger, station.queue, other, lambda _: None)
    assert station.waiting() == ids(forged, 0, 2, 1) + ids(other, 0, 1)


def test_what_has_waited_all_along_is_not_queued_again(station: Station, caplog: pytest.LogCaptureFixture) -> None:
    batch = placed(station, 9)
    assert reconcile(station.ledger, station.queue) == 0
    assert not forgotten(station.ledger, station.queue)
    assert station.waiting() == ids(batch, *range(6))
    assert caplog.text == ""


def test_what_was_set_aside_fails_and_does_not_run_again(station: Station) -> None:
    batch = placed(station, 3)
    station.fail_in_redis(ids(batch, 1)[0])
    told: list[str] = []
    station.recorder(on_finished=told.append).reconcile()
    assert told == ids(batch, 1)
    assert station.ledger.request(ids(batch, 1)[0]).state is RequestState.FAILED
    assert station.waiting() == ids(batch, 0, 2)


def test_a_batch_goes_into_no_other_redis_than_its_own(
    station: Station, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch, nowhere = placed(station, 3), station.enter(1)
    other = PrivateServer.start(tmp_path / "other")
    try:
        redis = Redis(unix_socket_path=other.url.removeprefix("unix://"), protocol=2)
        queue = RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
        with caplog.at_level(logging.INFO, "cidermill.recorder"):
            assert reconcile(station.ledger, queue) == 0
            Reminders().say(station.ledger, queue)
        assert not forgotten(station.ledger, queue)
        assert top_up(station.ledger, queue) == 0
        assert queue.depth(MODEL)["normal"] == 0
        here, there = queue.address, station.queue.address
        assert (
            f"batch {batch.id} was placed in Redis at {there}; this one, at {here}, does not know it, and nothing of "
            "it is put back here. To have it here, or if this is the same Redis by another address: "
            f"cidermill resume {batch.id}, with the URL used here"
        ) in caplog.text
        assert f"batch {nowhere.id} was placed in no Redis yet; to have it in this one" in caplog.text
        assert requeue_missing(station.ledger, queue, batch.id) == 3
        redis.flushall()
        assert forgotten(station.ledger, queue)
        reconcile(station.ledger, queue)
        assert top_up(station.ledger, queue) == 2
    finally:
        other.stop()


def test_a_redis_of_two_addresses_that_forgets_a_batch_is_a_warning_now_and_then(
    station: Station, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = placed(station, 3)
    station.ledger.note_placed(batch.id, "mill:6379/0")
    now = 1000.0
    monkeypatch.setattr("api.reconciling.time.monotonic", lambda: now)
    reminders = Reminders()

    def said() -> int:
        caplog.clear()
        reminders.say(station.ledger, station.queue)
        return len([record for record in caplog.records if record.levelno == logging.WARNING])

    assert said() == 0  # it is there
    station.redis.flushall()
    assert said() == 1
    assert f"batch {batch.id} was placed in Redis at mill:6379/0; this one, at {station.queue.address}" in caplog.text
    now += REMINDER_SECONDS - 1
    assert said() == 0
    now += 1
    assert said() == 1
    now += REMINDER_SECONDS
    requeue_missing(station.ledger, station.queue, batch.id)
    assert said() == 0


def test_the_recorder_says_which_batch_its_redis_does_not_know(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    batch = placed(station, 1)
    station.ledger.note_placed(batch.id, "mill:6379/0")
    station.redis.flushall()
    with running(station.recorder()):
        wait_until(lambda: f"batch {batch.id} was placed in Redis at mill:6379/0" in caplog.text, "the warning")


def test_two_ledgers_on_an_emptied_server_queue_what_is_theirs(station: Station, tmp_path: Path) -> None:
    mine = placed(station, 2)
    with Ledger.open(tmp_path / "second" / "ledger.sqlite3") as ledger:
        batch = station.enter(2, ledger=ledger)
        place(ledger, station.queue, batch, lambda _: None)
        station.redis.flushall()
        for own in (station.ledger, ledger):
            reconcile(own, station.queue)
            assert top_up(own, station.queue) == 2
    assert station.waiting() == ids(mine, 0, 1) + ids(batch, 0, 1)


def test_an_address_names_the_server_and_its_database_without_user_and_password() -> None:
    addresses = {
        "redis://mill": "mill:6379/0",
        "redis://user:secret@mill:6379/0": "mill:6379/0",
        "rediss://other:secret@mill:6380/3?ssl_ca_certs=ca.crt": "mill:6380/3",
        "redis://127.0.0.1": "localhost:6379/0",
        "redis://localhost:6379/1": "localhost:6379/1",
        "unix:///run/redis.sock": "/run/redis.sock/0",
        "unix://user:secret@/run/redis.sock?db=2": "/run/redis.sock/2",
    }
    assert {url: address(Redis.from_url(url)) for url in addresses} == addresses
