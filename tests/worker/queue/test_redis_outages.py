"""Redis dies while a request runs, comes back, or stays away for longer than a worker's patience."""

import signal

import pytest

from api.queue.presence import live_workers
from tests.worker.queue.conftest import Station, wait_until
from tests.worker.scripted_engine import scripted_text
from worker.outbox import PATTERN

pytestmark = pytest.mark.faults


def test_result_arrives_when_redis_dies_and_comes_back_during_the_request(station: Station) -> None:
    [request_id] = station.enqueue("a prompt", tokens=40)
    station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    station.kill_server()
    station.restart_server()
    [event] = station.wait_for_results(1)
    assert event.result is not None
    assert event.result.text == scripted_text("a prompt", 40)
    wait_until(lambda: not station.queue.live([request_id]), "the end of the job")
    assert len(station.starts()) == 1


def test_worker_keeps_a_result_through_an_outage_longer_than_its_patience(station: Station) -> None:
    first, second = station.enqueue("a prompt", "another", tokens=10)
    worker = station.start_worker(seconds_per_token=0.05, patience_seconds=0.2)
    wait_until(station.starts, "the start")
    station.kill_server()
    wait_until(lambda: station.logs().count(f"{first} waits in") >= 2, "two vain attempts")
    station.restart_server()
    results = station.wait_for_results(2)
    assert [event.request_id for event in results] == [first, second]
    assert worker.poll() is None
    wait_until(lambda: not station.queue.live([first, second]), "an empty queue")
    assert [request_id for request_id, _ in station.starts()] == [first, second]


def test_result_of_a_worker_that_died_in_the_outage_is_delivered_by_the_next(station: Station) -> None:
    [request_id] = station.enqueue("a prompt", tokens=10)
    worker = station.start_worker(seconds_per_token=0.05, patience_seconds=0.2, name="first")
    wait_until(station.starts, "the start")
    station.kill_server()
    wait_until(lambda: f"{request_id} waits in" in station.logs(), "a result that waits")
    worker.kill()
    worker.wait(10)
    station.restart_server()
    station.start_worker(name="second")
    [event] = station.wait_for_results(1)
    assert event.worker == "first"
    wait_until(lambda: not station.queue.live([request_id]), "the request to be forgotten")
    assert len(station.starts()) == 1
    assert [path.name for path in station.data_dir.glob(PATTERN)] == ["outbox-second.sqlite3"]


def test_worker_that_has_to_stop_in_an_outage_leaves_its_result_on_disk(station: Station) -> None:
    station.enqueue("a prompt", tokens=10)
    worker = station.start_worker(seconds_per_token=0.05, patience_seconds=0.2, name="first")
    wait_until(station.starts, "the start")
    station.kill_server()
    wait_until(lambda: "waits in" in station.logs(), "a result that waits")
    worker.send_signal(signal.SIGTERM)
    worker.wait(20)
    assert [path.name for path in station.data_dir.glob(PATTERN)] == ["outbox-first.sqlite3"]
    station.restart_server()
    station.start_worker()
    [event] = station.wait_for_results(1)
    assert event.worker == "first"


def test_idle_worker_obeys_a_signal_in_an_outage_and_survives_one_otherwise(station: Station) -> None:
    worker = station.start_worker(patience_seconds=120)
    wait_until(lambda: [w.state for w in live_workers(station.redis)] == ["idle"], "the worker")
    station.kill_server()
    wait_until(lambda: "Redis does not answer" in station.logs(), "the worker to notice")
    station.restart_server()
    station.enqueue("a prompt")
    station.wait_for_results(1)
    station.kill_server()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(5) == 0
