"""A Redis that is full, or that forbids something: no request is failed for it, and none is lost."""

import random

import pytest
from redis import exceptions

from api.queue.presence import live_workers
from api.queue.requests import cancel_key
from api.queue.results import RESULTS_STREAM, ResultsReader, publish
from api.schemas import GenerationResult, RequestEvent
from tests.worker.queue.conftest import BATCH, Station, wait_until
from tests.worker.scripted_engine import scripted_text
from worker.outbox import Outbox

pytestmark = pytest.mark.faults


def test_a_result_waits_for_room_in_a_full_redis(station: Station) -> None:
    """One that is larger than what Redis gets free by it."""
    [request_id, _] = station.enqueue("a prompt", "another", tokens=500)
    worker = station.start_worker(seconds_per_token=0.001)
    wait_until(station.starts, "the start")
    station.redis.config_set("maxmemory", 1)
    wait_until(lambda: "Redis refuses results: OutOfMemoryError" in station.logs(), "the refusal")
    assert worker.poll() is None
    station.redis.config_set("maxmemory", 0)
    events = station.wait_for_results(2)
    assert [event.result.text for event in events if event.result] == [
        scripted_text("a prompt", 500),
        scripted_text("another", 500),
    ]
    assert station.starts()[0] == (request_id, worker.pid)
    assert station.queue.set_aside(station.model) == []


def test_a_redis_full_of_prompts_is_worked_off(station: Station) -> None:
    """Also by a worker that starts meanwhile, and although nothing new gets in."""
    prompts = [random.Random(number).randbytes(20_000).hex() for number in range(20)]
    requests = station.enqueue(*prompts)
    station.redis.config_set("maxmemory", station.redis.info("memory")["used_memory"] - 1)
    with pytest.raises(exceptions.OutOfMemoryError):
        station.enqueue("one more", first=20)
    worker = station.start_worker()
    events = station.wait_for_results(20)
    assert {event.request_id for event in events} == set(requests)
    assert station.starts() == [(request, worker.pid) for request in requests]
    wait_until(lambda: [one.state for one in live_workers(station.redis)] == ["idle"], "the worker to be idle")
    assert station.queue.set_aside(station.model) == []
    assert "Redis refuse" not in station.logs()


def test_a_batch_is_cancelled_in_a_full_redis(station: Station) -> None:
    requests = station.enqueue("one", "two")
    station.redis.config_set("maxmemory", 1)
    station.queue.withdraw(requests, batch_id=BATCH)
    assert station.redis.exists(cancel_key(BATCH)) == 1
    assert station.queue.depth(station.model) == {"high": 0, "normal": 0, "low": 0}
    assert station.queue.live(requests) == set()


def test_a_recorder_starts_in_a_full_redis_and_gets_it_free(station: Station) -> None:
    event = RequestEvent(kind="started", request_id=f"{BATCH}-0", worker="w", attempt=1, at=1.0)
    publish(station.redis, event)
    station.redis.config_set("maxmemory", 1)
    reader = ResultsReader(station.redis, "test", "another ledger")
    ((entry, read),) = reader.read(block_ms=20)
    assert read == event
    reader.acknowledge([entry])
    assert station.redis.xlen(RESULTS_STREAM) == 0


def test_a_worker_waits_for_room_for_what_an_earlier_one_left(station: Station) -> None:
    station.data_dir.mkdir(exist_ok=True)
    [request] = station.enqueue("a prompt", tokens=500)
    result = GenerationResult(request_id=request, text=scripted_text("a prompt", 500), finish_reason="length")
    earlier = Outbox(station.data_dir / "outbox-earlier.sqlite3")
    earlier.store(RequestEvent(kind="finished", request_id=request, worker="earlier", attempt=1, at=1.0, result=result))
    earlier.close()
    station.redis.config_set("maxmemory", 1)
    worker = station.start_worker()
    wait_until(lambda: "waiting until it has room" in station.logs(), "the worker to wait")
    assert worker.poll() is None
    station.redis.config_set("maxmemory", 0)
    (event,) = station.wait_for_results(1)
    assert event.worker == "earlier"
    wait_until(lambda: [one.state for one in live_workers(station.redis)] == ["idle"], "the worker to work")
    assert station.starts() == []


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
