"""A request that is answered, or that its server forgot, is not run by whoever still holds a piece of it."""

import time

import pytest
from rq.executions import Execution
from rq.job import JobStatus

from api.queue.hardening import SafeJob
from api.queue.results import publish_result
from api.queue.safe_queue import SafeQueue
from api.schemas import GenerationResult, RequestEvent
from tests.worker.queue.conftest import Station, wait_until

QUEUE = "scripted:normal"


def answer(request_id: str) -> RequestEvent:
    result = GenerationResult(request_id=request_id, text="t", finish_reason="stop")
    return RequestEvent(kind="finished", request_id=request_id, worker="w", attempt=1, at=time.time(), result=result)


def take(station: Station, seconds: int) -> tuple[SafeQueue, Execution]:
    """What a worker does until it holds a lease: the request is still queued, and in the intermediate list."""
    queue = SafeQueue(QUEUE, station.redis, settling_seconds=0)
    found = SafeQueue.dequeue_any([queue], None, station.redis)
    assert found is not None
    with station.redis.pipeline() as pipeline:
        execution = Execution.create(found[0], seconds, pipeline=pipeline, worker_name="w")
        pipeline.execute()
    return queue, execution


def start(station: Station, request_id: str, execution: Execution) -> bool:
    job = SafeJob(request_id, connection=station.redis, serializer="json")
    job.origin = QUEUE
    with station.redis.pipeline() as pipeline:
        job.started_job_registry.start(pipeline, execution, job, "w")
        return bool(pipeline.execute()[0])


def test_an_answered_request_that_waits_again_is_skipped(station: Station) -> None:
    answered, other = station.enqueue("one", "two")
    publish_result(station.redis, answer(answered))
    assert station.queue.live([answered, other]) == {other}
    station.start_worker()
    wait_until(lambda: len(station.finished()) == 2, "the other's result")
    assert [request_id for request_id, _ in station.starts()] == [other]


def test_an_answer_without_a_queue_entry_makes_none(station: Station) -> None:
    publish_result(station.redis, answer("batch_01TEST-7"))
    assert station.redis.keys("rq:job:*") == []
    assert [event.request_id for event in station.finished()] == ["batch_01TEST-7"]


@pytest.mark.parametrize("seconds", [-1, 60])
def test_an_ended_lease_of_an_answered_request_is_a_leftover(station: Station, seconds: int) -> None:
    [request_id] = station.enqueue("one")
    queue, execution = take(station, 60)
    assert start(station, request_id, execution)
    publish_result(station.redis, answer(request_id))
    station.redis.zadd(queue.started_job_registry.key, {execution.composite_key: time.time() + seconds})
    queue.clean()
    assert queue.get_job_ids() == []
    assert station.queue.set_aside(station.model) == []
    assert station.redis.zcard(queue.started_job_registry.key) == (1 if seconds > 0 else 0)


def test_a_request_is_not_started_once_it_is_answered_gone_or_leased_no_more(station: Station) -> None:
    answered, gone, lost = station.enqueue("one", "two", "three")
    held = [take(station, 60)[1] for _ in range(3)]
    publish_result(station.redis, answer(answered))
    station.redis.delete(f"rq:job:{gone}")
    station.redis.zrem("rq:wip:scripted:normal", held[2].composite_key)
    assert [start(station, *pair) for pair in zip([answered, gone, lost], held, strict=True)] == [False] * 3
    assert station.redis.exists(f"rq:job:{gone}") == 0


def test_a_started_request_without_a_lease_is_not_live(station: Station) -> None:
    orphan, running = station.enqueue("one", "two")
    executions = [take(station, 60)[1] for _ in range(2)]
    assert [start(station, *pair) for pair in zip([orphan, running], executions, strict=True)] == [True, True]
    station.redis.zrem("rq:wip:scripted:normal", executions[0].composite_key)
    assert station.queue.live([orphan, running]) == {running}


def test_a_worker_that_died_between_lease_and_start_costs_no_attempt_and_no_further_wait(station: Station) -> None:
    [request_id] = station.enqueue("one")
    queue, _ = take(station, -1)
    queue.clean()
    assert queue.get_job_ids() == [request_id]
    assert station.redis.lrange(queue.intermediate_queue_key, 0, -1) == []
    assert station.redis.hgetall(f"rq:job:{request_id}")[b"retries_left"] == b"1"
    assert station.redis.hget(f"rq:job:{request_id}", "status") == JobStatus.QUEUED.encode()


def test_a_lease_that_ended_while_the_server_hung_can_be_renewed_before_it_is_taken(station: Station) -> None:
    [request_id] = station.enqueue("one")
    queue, execution = take(station, -1)
    registry = queue.started_job_registry
    registry.reap(queue, confirm_seconds=60)
    assert registry.holds(execution)
    assert registry.renew(station.redis, execution, 60)
    assert station.redis.keys("cidermill:ended:*") == []
    station.redis.zadd(registry.key, {execution.composite_key: 1})
    registry.reap(queue, confirm_seconds=0.05)
    assert registry.holds(execution)
    wait_until(lambda: registry.reap(queue, confirm_seconds=0.05) or not registry.holds(execution), "the reaper")
    assert queue.get_job_ids() == [request_id]
