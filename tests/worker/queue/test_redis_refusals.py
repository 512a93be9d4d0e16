"""A Redis that is full, or that forbids something: no request is failed for it, and none is lost."""

import pytest

from tests.worker.queue.conftest import Station, wait_until
from tests.worker.scripted_engine import scripted_text

pytestmark = pytest.mark.faults


def test_a_result_waits_for_room_in_a_full_redis(station: Station) -> None:
    [request_id, _] = station.enqueue("a prompt", "another", tokens=10)
    worker = station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    station.redis.config_set("maxmemory", 1)
    wait_until(lambda: "Redis refuses results: OutOfMemoryError" in station.logs(), "the refusal")
    assert worker.poll() is None
    station.redis.config_set("maxmemory", 0)
    events = station.wait_for_results(2)
    assert [event.result.text for event in events if event.result] == [
        scripted_text("a prompt", 10),
        scripted_text("another", 10),
    ]
    assert station.starts()[0] == (request_id, worker.pid)
    assert station.queue.set_aside(station.model) == []


def test_a_worker_without_permission_stops_and_fails_no_request(station: Station) -> None:
    requests = station.enqueue("a prompt", "another", tokens=10)
    worker = station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    station.redis.execute_command("ACL", "SETUSER", "default", "-xadd")
    assert worker.wait(20) == 1
    assert "cidermill redis-check --role worker says what is missing" in station.logs()
    station.redis.execute_command("ACL", "SETUSER", "default", "+xadd")
    assert station.queue.set_aside(station.model) == []
    station.start_worker()
    events = station.wait_for_results(2)
    assert {event.request_id for event in events} == set(requests)
    assert all(event.result is not None and event.result.error is None for event in events)
