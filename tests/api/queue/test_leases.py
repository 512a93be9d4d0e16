"""A request from its way out of the queue to its end, step by step as a worker takes them, and whoever cuts in."""

import time
from typing import Any, cast

import pytest
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError
from rq.executions import Execution

from api.pacing import SPREAD
from api.queue.guarded import carry_out
from api.queue.hardening import STORED_FIELDS, SafeJob
from api.queue.leases import LONGEST_TICK_SECONDS, LeaseRegistry, confirmed_seconds
from api.queue.requests import RequestQueue
from api.queue.results import RESULTS_STREAM, ResultsReader, publish_result
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
            held.started_job_registry.end(pipeline, execution, job, told=False)
            answers += pipeline.execute()
    assert answers == [1, 1]  # sent twice by the same holder, as after an answer that was lost
    assert redis.hget(f"rq:job:{request_id}", "status") == b"finished"
    assert redis.zcard(LEASES) == 0
    other = Execution("other", request_id, redis, worker_name="w")
    with redis.pipeline() as pipeline:
        held.started_job_registry.end(pipeline, other, job, told=False)
        assert pipeline.execute() == [0]


def test_a_start_is_told_while_the_lease_is_held_and_nobody_has_answered(queue: RequestQueue, redis: Redis) -> None:
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    registry = held.started_job_registry
    job = SafeJob.fetch(request_id, connection=redis, serializer=held.serializer)
    event = RequestEvent(kind="started", request_id=request_id, worker="w", attempt=1, at=1.0)

    def asked() -> tuple[bool, bool, int]:
        return (
            registry.is_wanted(execution, job),
            registry.tell_start(execution, job, event),
            redis.xlen(RESULTS_STREAM),
        )

    assert asked() == (True, True, 1)
    redis.hset(f"rq:job:{request_id}", "status", "finished")
    assert asked() == (False, False, 1)
    redis.hset(f"rq:job:{request_id}", "status", "started")
    redis.delete(LEASES)
    assert asked() == (False, False, 1)


def test_an_end_that_was_told_is_not_booked_where_the_server_has_forgotten_the_answer(
    queue: RequestQueue, redis: Redis
) -> None:
    """It came back without its last second: the request has to run again, when its lease is over."""
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    job = SafeJob.fetch(request_id, connection=redis, serializer=held.serializer)
    with redis.pipeline() as pipeline:
        held.started_job_registry.end(pipeline, execution, job, told=True)
        assert pipeline.execute() == [0]
    redis.zadd(LEASES, {the_lease(redis): redis.time()[0] - 1})
    queue.maintain("m")
    assert redis.lrange("rq:queue:m:normal", 0, -1) == [request_id.encode()]
    held, execution = take(redis, 60)
    assert start(held, execution)
    redis.hset(f"rq:job:{request_id}", "status", "finished")  # as the answer does
    with redis.pipeline() as pipeline:
        held.started_job_registry.end(pipeline, execution, job, told=True)
        assert pipeline.execute() == [1]
    assert redis.zcard(LEASES) == 0


def died(queue: RequestQueue, redis: Redis, count: int) -> tuple[SafeQueue, list[str]]:
    """Requests whose worker died a second ago."""
    ids = put(queue, count)
    for _ in ids:
        held, execution = take(redis, 60)
        assert start(held, execution)
        redis.zadd(LEASES, {execution.composite_key: redis.time()[0] - 1})
    return held, ids


def the_lease(redis: Redis) -> bytes:
    [member] = cast(list[bytes], redis.zrange(LEASES, 0, -1))
    return member


def test_a_request_is_handed_on_however_often_other_leases_are_renewed_meanwhile(
    queue: RequestQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, [request_id] = died(queue, redis, 1)
    between, commit = cast(Any, Redis.execute_command), cast(Any, Pipeline.execute)

    def renewed(*arguments: Any, **named: Any) -> Any:
        between(redis, "ZADD", LEASES, time.time() + 60 + redis.zcard(LEASES), "batch_OTHER-0:e")
        return commit(*arguments, **named)

    def renewed_first(connection: Redis, *arguments: Any, **named: Any) -> Any:
        between(redis, "ZADD", LEASES, time.time() + 60, "batch_OTHER-0:e")
        return between(connection, *arguments, **named)

    monkeypatch.setattr(Redis, "execute_command", renewed_first)
    monkeypatch.setattr(Pipeline, "execute", renewed)
    held.started_job_registry.reap(held)
    monkeypatch.undo()
    assert held.get_job_ids() == [request_id]
    assert redis.zrange(LEASES, 0, -1) == [b"batch_OTHER-0:e"]


@pytest.mark.parametrize("cut_in", ["renewed", "answered", "gone"])
def test_nothing_is_done_when_the_owner_was_faster(queue: RequestQueue, redis: Redis, cut_in: str) -> None:
    _, [request_id] = died(queue, redis, 1)
    member = the_lease(redis)

    def write(pipeline: Pipeline) -> None:
        pipeline.set("written", 1)
        if cut_in == "renewed":
            redis.zadd(LEASES, {member: redis.time()[0] + 60})
        elif cut_in == "answered":
            publish_result(redis, answer(request_id))
        else:
            redis.zrem(LEASES, member)

    assert carry_out(redis, LEASES, "note", member, "started", write, ended=True) is None
    assert redis.exists("written") == 0


def test_a_command_that_fails_on_what_is_stored_is_left_out_and_told(queue: RequestQueue, redis: Redis) -> None:
    died(queue, redis, 1)
    member = the_lease(redis)
    redis.set("text", "x")

    def write(pipeline: Pipeline) -> None:
        pipeline.set("first", 1)
        pipeline.rpush("text", "y")
        pipeline.expire("first", 10**19)
        pipeline.set("last", b"\xff\x00")

    troubles = carry_out(redis, LEASES, "note", member, "started", write, ended=True)
    assert troubles is not None
    assert [trouble.split()[0] for trouble in troubles] == ["WRONGTYPE", "ERR"]
    assert redis.mget("first", "text", "last") == [b"1", b"x", b"\xff\x00"]


@pytest.mark.parametrize(("retries", "key"), [("1", f"rq:queue:{NAME}"), ("0", f"rq:failed:{NAME}")])
def test_a_request_that_cannot_be_put_anywhere_stays_under_its_lease(
    queue: RequestQueue, redis: Redis, retries: str, key: str
) -> None:
    held, [request_id] = died(queue, redis, 1)
    redis.hset(f"rq:job:{request_id}", "retries_left", retries)
    before = redis.hgetall(f"rq:job:{request_id}")
    redis.set(key, "forged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        held.clean()
    assert redis.hgetall(f"rq:job:{request_id}") == before
    assert redis.zcard(LEASES) == 1
    assert redis.exists(f"cidermill:lost:{request_id}", "cidermill:results") == 0
    queue.remove_impostors(["m"])
    held.clean()
    assert redis.zcard(LEASES) == 0
    waiting = [request_id] if retries == "1" else []
    assert held.get_job_ids() == waiting
    assert [aside.request_id for aside in queue.set_aside("m")] == ([] if waiting else [request_id])


def test_a_request_that_cannot_be_handed_back_stays_under_its_lease(queue: RequestQueue, redis: Redis) -> None:
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    redis.set(held.key, "forged")

    def write(pipeline: Pipeline) -> None:
        pipeline.zrem(LEASES, execution.composite_key)
        pipeline.hset(f"rq:job:{request_id}", "status", "queued")
        pipeline.lpush(held.key, request_id)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        held.started_job_registry.while_held(execution, write)
    assert redis.zcard(LEASES) == 1
    assert redis.hget(f"rq:job:{request_id}", "status") == b"started"


def test_an_answer_that_cannot_be_published_leaves_the_entry_as_it_is(queue: RequestQueue, redis: Redis) -> None:
    [request_id] = put(queue, 1)
    held, execution = take(redis, 60)
    assert start(held, execution)
    redis.set("cidermill:results", "forged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        publish_result(redis, answer(request_id))
    assert redis.ttl(f"rq:job:{request_id}") == -1
    assert redis.hget(f"rq:job:{request_id}", "status") == b"started"


@pytest.mark.parametrize("provoked", ["an error of the server", "an error of Python"])
def test_an_entry_that_makes_trouble_is_set_aside_and_the_next_is_handed_on(
    queue: RequestQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, provoked: str
) -> None:
    held, [bad, good] = died(queue, redis, 2)
    move_on = LeaseRegistry._move_on

    def troubled(self: LeaseRegistry, job: Any, *arguments: Any) -> None:
        if job.id == bad and provoked == "an error of Python":
            raise OverflowError
        move_on(self, job, *arguments)
        if job.id == bad:
            arguments[-1].expire("cidermill:lost:x", 10**19)

    monkeypatch.setattr(LeaseRegistry, "_move_on", troubled)
    held.clean()
    assert good in held.get_job_ids()
    assert [aside.request_id for aside in queue.set_aside("m")] == [bad]
    assert redis.zcard(LEASES) == 0


@pytest.mark.parametrize("field", STORED_FIELDS)
@pytest.mark.parametrize("retries", ["1", "0"])
def test_no_field_of_an_entry_keeps_another_from_being_handed_on(
    queue: RequestQueue, redis: Redis, field: str, retries: str
) -> None:
    held, [*bad, good] = died(queue, redis, len(HOSTILE_NUMBERS) + 1)
    for request_id, value in zip(bad, HOSTILE_NUMBERS, strict=True):
        redis.hset(f"rq:job:{request_id}", mapping=cast(Any, {"retries_left": retries, field: value}))
    held.clean()
    assert good in held.get_job_ids()
    assert redis.zcard(LEASES) == 0
    assert {aside.request_id for aside in queue.set_aside("m")} <= set(bad)
    assert good in queue.live([*bad, good])


HOSTILE_NUMBERS = (
    *("9" * 400, "9" * 19, "9" * 5000, "-5", "-1", "nan", "inf", "-inf", "1e999", "abc", "", b"\xff"),
    *("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", "99999-01-01T00:00:00Z"),
)


@pytest.mark.parametrize("name", ["timeout", "result_ttl", "failure_ttl", "retries_left", "number_of_retries"])
@pytest.mark.parametrize("value", ["-1", str(10**9 + 1), "9" * 19, "9" * 400])
def test_a_number_out_of_range_makes_an_entry_unreadable(
    queue: RequestQueue, redis: Redis, name: str, value: str
) -> None:
    [request_id] = put(queue, 1)
    redis.hset(f"rq:job:{request_id}", name, value)
    assert SafeQueue.dequeue_any([SafeQueue(NAME, redis, settling_seconds=0)], None, redis) is None
    assert [aside.request_id for aside in queue.set_aside("m")] == [request_id]


@pytest.mark.parametrize("score", [float("-inf"), -5.0, 0.0])
def test_a_lease_with_a_forged_end_long_ago_is_ended(queue: RequestQueue, redis: Redis, score: float) -> None:
    held, [request_id] = died(queue, redis, 1)
    member = the_lease(redis)
    redis.zadd(LEASES, {member: score})
    held.clean()
    assert held.get_job_ids() == [request_id]


@pytest.mark.parametrize("heartbeat", [0.1, 0.5, 1, 5, 22])
def test_a_lease_is_confirmed_for_longer_than_its_owner_lets_pass_between_renewals(heartbeat: float) -> None:
    tick = min(LONGEST_TICK_SECONDS, heartbeat)
    assert confirmed_seconds(heartbeat) > heartbeat + tick * (1 + SPREAD)


def test_a_lease_is_noted_before_its_end_so_that_it_is_handed_on_at_once(queue: RequestQueue, redis: Redis) -> None:
    """The default lease and heartbeat; the server's clock stands in for the time that passes."""
    held, [request_id] = died(queue, redis, 1)
    member = the_lease(redis)
    note = f"cidermill:ended:{member.decode()}"
    registry, confirm = held.started_job_registry, confirmed_seconds(5)
    for left, noted in ((38, 0), (13, 1)):
        redis.zadd(LEASES, {member: redis.time()[0] + left})
        registry.reap(held, confirm)
        assert redis.exists(note) == noted
    redis.pexpire(note, redis.pttl(note) - 6_000)
    redis.zadd(LEASES, {member: redis.time()[0] - 1})  # not for long enough
    registry.reap(held, confirm)
    assert held.get_job_ids() == []
    redis.pexpire(note, redis.pttl(note) - 1_000)
    registry.reap(held, confirm)
    assert held.get_job_ids() == [request_id]
    assert redis.exists(note) == 0


@pytest.mark.parametrize("forged", ["a list", "no end", "far away"])
def test_a_forged_note_keeps_no_lease(queue: RequestQueue, redis: Redis, forged: str) -> None:
    held, [request_id] = died(queue, redis, 1)
    member = the_lease(redis)
    note = f"cidermill:ended:{member.decode()}"
    if forged == "a list":
        redis.rpush(note, "x")
    else:
        redis.set(note, "x", px=10**12 if forged == "far away" else None)
    held.started_job_registry.reap(held, 7)
    assert 599_000 < redis.pttl(note) <= 600_000
    redis.pexpire(note, 592_000)
    held.started_job_registry.reap(held, 7)
    assert held.get_job_ids() == [request_id]
