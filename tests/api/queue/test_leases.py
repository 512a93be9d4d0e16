"""A request from its way out of the queue to its end, step by step as a worker takes them, and whoever cuts in."""

import time
from typing import Any

import pytest
from redis import Redis
from rq.executions import Execution

from api.queue.hardening import SafeJob
from api.queue.requests import RequestQueue
from api.queue.results import ResultsReader, publish_result
from api.queue.safe_queue import SafeQueue
from api.schemas import GenerationRequest, GenerationResult, RequestEvent

BATCH = "batch_01TEST"
NAME = "m:normal"
LEASES = f"rq:wip:{NAME}"


def put(queue: RequestQueue, count: int) -> list[str]:
    requests = [GenerationRequest(request_id=f"{BATCH}-{index}", prompt="p") for index in range(count)]
    queue.enqueue(requests, model="m", priority="normal")
    return [request.request_id for request in requests]


def answer(request_id: str) -> RequestEvent:
    result = GenerationResult(request_id=request_id, text="t", finish_reason="stop")
    return RequestEvent(kind="finished", request_id=request_id, worker="w", attempt=1, at=time.time(), result=result)


def take(redis: Redis, seconds: int) -> tuple[SafeQueue, Execution]:
    """Until a worker holds a lease: the request is still queued, and in the intermediate list."""
    queue = SafeQueue(NAME, redis, settling_seconds=0)
    found = SafeQueue.dequeue_any([queue], None, redis)
    assert found is not None
    with redis.pipeline() as pipeline:
        execution = Execution.create(found[0], seconds, pipeline=pipeline, worker_name="w")
        pipeline.execute()
    return queue, execution


def start(queue: SafeQueue, execution: Execution, worker: str = "w") -> bool:
    job = SafeJob(execution.job_id, connection=queue.connection, serializer="json")
    job.origin = NAME
    with queue.connection.pipeline() as pipeline:
        queue.started_job_registry.start(pipeline, execution, job, worker)
        return bool(pipeline.execute()[0])


def test_an_answer_without_a_queue_entry_makes_none(redis: Redis) -> None:
    publish_result(redis, answer(f"{BATCH}-7"))
    assert redis.keys("rq:job:*") == []
    [(_, event)] = ResultsReader(redis, "c").read()
    assert event is not None
    assert event.request_id == f"{BATCH}-7"


def test_an_answer_ends_the_queue_entry_whoever_holds_it(queue: RequestQueue, redis: Redis) -> None:
    waits, runs = put(queue, 2)[::-1]
    held, execution = take(redis, 60)
    assert start(held, execution)
    for request_id in (waits, runs):
        publish_result(redis, answer(request_id))
        assert redis.hget(f"rq:job:{request_id}", "status") == b"finished"
        assert 0 < redis.ttl(f"rq:job:{request_id}") <= 60
    assert queue.live([waits, runs]) == set()
    assert queue.answered() == {waits, runs}
    assert SafeQueue.dequeue_any([held], None, redis) is None  # it still waits in the list, and is passed over
    assert redis.llen(held.key) == 0


@pytest.mark.parametrize("seconds", [-1, 60])
def test_an_ended_lease_of_an_answered_request_is_a_leftover(queue: RequestQueue, redis: Redis, seconds: int) -> None:
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    publish_result(redis, answer(request_id))
    redis.zadd(LEASES, {execution.composite_key: time.time() + seconds})
    held.clean()
    assert held.get_job_ids() == []
    assert queue.set_aside("m") == []
    assert redis.zcard(LEASES) == (1 if seconds > 0 else 0)


def test_a_request_is_not_started_once_it_is_answered_gone_or_leased_no_more(queue: RequestQueue, redis: Redis) -> None:
    answered, gone, _lost = put(queue, 3)
    held = [take(redis, 60) for _ in range(3)]
    publish_result(redis, answer(answered))
    redis.delete(f"rq:job:{gone}")
    redis.zrem(LEASES, held[2][1].composite_key)
    assert [start(*pair) for pair in held] == [False] * 3
    assert redis.exists(f"rq:job:{gone}") == 0


def test_a_started_request_without_a_lease_is_not_live(queue: RequestQueue, redis: Redis) -> None:
    orphan, running = put(queue, 2)
    held = [take(redis, 60) for _ in range(2)]
    assert [start(*pair) for pair in held] == [True, True]
    redis.zrem(LEASES, held[0][1].composite_key)
    assert queue.live([orphan, running]) == {running}


def test_a_worker_that_died_between_lease_and_start_costs_no_attempt_and_no_further_wait(
    queue: RequestQueue, redis: Redis
) -> None:
    [request_id] = put(queue, 1)
    held, _ = take(redis, -1)
    held.clean()
    assert held.get_job_ids() == [request_id]
    assert redis.lrange(held.intermediate_queue_key, 0, -1) == []
    assert redis.hmget(f"rq:job:{request_id}", "retries_left", "status") == [b"1", b"queued"]


def test_a_lease_that_ended_while_the_server_hung_can_be_renewed_before_it_is_taken(
    queue: RequestQueue, redis: Redis
) -> None:
    [request_id] = put(queue, 1)
    held, execution = take(redis, -1)
    registry = held.started_job_registry
    registry.reap(held, confirm_seconds=60)
    assert registry.holds(execution)
    assert registry.renew(redis, execution, 60)
    assert redis.keys("cidermill:ended:*") == []
    redis.zadd(LEASES, {execution.composite_key: 1})
    registry.reap(held, confirm_seconds=60)
    assert registry.holds(execution)
    # As if the end had been seen 61 s ago.
    [seen] = redis.keys("cidermill:ended:*")
    redis.pexpire(seen, redis.pttl(seen) - 61_000)
    registry.reap(held, confirm_seconds=60)
    assert not registry.holds(execution)
    assert held.get_job_ids() == [request_id]


def test_a_start_whose_answer_was_lost_can_be_repeated_by_the_same_worker_alone(
    queue: RequestQueue, redis: Redis
) -> None:
    put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution, "w")
    assert start(held, execution, "w")
    assert not start(held, execution, "another")


def test_whoever_is_beaten_to_a_write_commits_nothing(queue: RequestQueue, redis: Redis) -> None:
    """Between the look at a lease and the commit somebody else ends the job."""
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    tries = []

    def write(pipeline: Any) -> None:
        tries.append(request_id)
        redis.hset(f"rq:job:{request_id}", "status", "finished")
        pipeline.hset(f"rq:job:{request_id}", "status", "queued")

    assert not held.started_job_registry.while_held(execution, write)
    assert tries == [request_id]
    assert redis.hget(f"rq:job:{request_id}", "status") == b"finished"


def test_an_end_is_booked_once_and_by_the_holder_alone(queue: RequestQueue, redis: Redis) -> None:
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    job = SafeJob.fetch(request_id, connection=redis, serializer=held.serializer)
    answers = []
    for _ in range(2):
        with redis.pipeline() as pipeline:
            held.started_job_registry.end(pipeline, execution, job)
            answers += pipeline.execute()
    assert answers == [1, 1]  # sent twice by the same holder, as after an answer that was lost
    assert redis.hget(f"rq:job:{request_id}", "status") == b"finished"
    assert redis.zcard(LEASES) == 0
    other = Execution("other", request_id, redis, worker_name="w")
    with redis.pipeline() as pipeline:
        held.started_job_registry.end(pipeline, other, job)
        assert pipeline.execute() == [0]
