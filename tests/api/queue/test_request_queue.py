import json
import zlib
from collections.abc import Sequence

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer

from api.queue import attempts, entries
from api.queue.connection import connect
from api.queue.hardening import JOB_NAME, SafeJob
from api.queue.leases import server_time
from api.queue.quarantine import quarantine
from api.queue.requests import RequestQueue, SetAside, cancel_key, queue_name
from api.queue.results import publish_result
from api.queue.safe_queue import FIRST_SEEN_SECONDS, GRACE_SECONDS, SafeQueue
from api.queue.server import PrivateServer
from api.schemas import ChatMessage, GenerationRequest, GenerationResult, Priority, RequestEvent

BATCH = "batch_01TEST"
LIST = "rq:queue:m:normal"
LEASES = "rq:wip:m:normal"


def _requests(count: int, first: int = 0) -> list[GenerationRequest]:
    return [GenerationRequest(request_id=f"{BATCH}-{i}", prompt=f"p{i}") for i in range(first, first + count)]


def _ids(requests: list[GenerationRequest]) -> list[str]:
    return [request.request_id for request in requests]


def _enqueue(queue: RequestQueue, requests: list[GenerationRequest], priority: Priority = "normal") -> int:
    return queue.enqueue(requests, model="m", priority=priority)


def _start(redis: Redis, request_id: str, worker: str, lease: int) -> Execution:
    """What a worker does when it takes the request at the head."""
    redis.lrem(LIST, 1, request_id)
    job = SafeJob.fetch(request_id, connection=redis, serializer=JSONSerializer)
    with redis.pipeline() as pipeline:
        execution = Execution.create(job, 60, pipeline, worker_name=worker)
        job.prepare_for_execution(worker, pipeline)
        pipeline.execute()
    redis.zadd(LEASES, {execution.composite_key: server_time(redis) + lease})
    return execution


def test_requests_wait_in_order_under_their_own_ids(queue: RequestQueue, redis: Redis) -> None:
    requests = _requests(2100)
    assert _enqueue(queue, requests) == 2100
    assert [entry.decode() for entry in redis.lrange(LIST, 0, -1)] == _ids(requests)
    assert queue.depth("m") == {"high": 0, "normal": 2100, "low": 0}
    assert queue.live([*_ids(requests), "batch_01TEST-9999"]) == set(_ids(requests))


def test_payload_is_the_request_as_json(queue: RequestQueue, redis: Redis) -> None:
    request = GenerationRequest(
        request_id=f"{BATCH}-0",
        messages=[ChatMessage(role="user", content="héllo")],
        logit_bias={5: -1.5},
        temperature=0.0,
        tools=[{"function": {"default": None}}],
        stop=["\n"],
    )
    _enqueue(queue, [request])
    data = redis.hget(f"rq:job:{BATCH}-0", "data")
    assert isinstance(data, bytes)
    name, instance, arguments, named = json.loads(zlib.decompress(data))
    assert (name, instance, named) == (JOB_NAME, None, {})
    assert GenerationRequest.model_validate(arguments[0]) == request
    assert redis.hget(f"rq:job:{BATCH}-0", "description") == request.request_id.encode()


def test_live_requests_are_not_queued_twice(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(3))
    _start(redis, f"{BATCH}-0", "w", 60)
    assert _enqueue(queue, _requests(5)) == 2
    assert queue.depth("m")["normal"] == 4


def test_nobody_takes_what_is_asked_about_and_what_is_settled_vanishes(queue: RequestQueue, redis: Redis) -> None:
    requests = _requests(4)
    ids = _ids(requests)
    result = GenerationResult(request_id=ids[2], text="t", finish_reason="stop")
    answer = RequestEvent(kind="finished", request_id=ids[2], worker="w", attempt=1, at=1, result=result)

    def settled(asked: Sequence[str]) -> list[str]:
        assert asked == ids
        assert redis.llen(LIST) == 0
        assert queue.live(ids) == set()
        assert all(redis.ttl(f"rq:job:{request_id}") > 0 for request_id in ids)
        publish_result(redis, answer)
        return [ids[0]]

    assert queue.enqueue(requests, model="m", priority="normal", settled=settled) == 2
    assert [entry.decode() for entry in redis.lrange(LIST, 0, -1)] == [ids[1], ids[3]]
    assert queue.live(ids) == {ids[1], ids[3]}
    assert not redis.exists(f"rq:job:{ids[0]}")
    assert redis.hget(f"rq:job:{ids[2]}", "status") == b"finished"
    assert redis.ttl(f"rq:job:{ids[1]}") == -1


@pytest.mark.parametrize("forged", [{"status": b"\xff"}, {"status": "deferred", "enqueued_at": b"\xff\0"}, None])
def test_a_forged_entry_keeps_no_request_out(
    queue: RequestQueue, redis: Redis, forged: dict[str, bytes | str] | None
) -> None:
    key = f"rq:job:{BATCH}-0"
    if forged is None:
        redis.rpush(key, "of another type")
    else:
        redis.hset(key, mapping=forged)  # type: ignore[arg-type]
    assert _enqueue(queue, _requests(2)) == 2
    assert queue.live(_ids(_requests(2))) == set(_ids(_requests(2)))


def test_what_was_never_released_is_put_again(queue: RequestQueue, redis: Redis) -> None:
    def die(_: Sequence[str]) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.enqueue(_requests(2), model="m", priority="normal", settled=die)
    assert redis.llen(LIST) == 0
    assert _enqueue(queue, _requests(2)) == 2
    assert queue.depth("m")["normal"] == 2


def test_finished_job_can_be_queued_again_and_does_not_expire(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    key = f"rq:job:{BATCH}-0"
    redis.delete(LIST)
    redis.hset(key, "status", "finished")
    redis.expire(key, 60)
    with redis.pipeline() as pipeline:
        attempts.begin(pipeline, f"{BATCH}-0", "rq:execution:none")
        pipeline.execute()
    assert queue.live([f"{BATCH}-0"]) == set()
    assert _enqueue(queue, _requests(1)) == 1
    assert redis.ttl(key) == -1
    assert not redis.exists(attempts.attempts_key(f"{BATCH}-0"))


def test_producer_runs_no_entry_whatever_its_name(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    job = SafeJob.fetch(f"{BATCH}-0", connection=redis, serializer=JSONSerializer)
    with pytest.raises(PermissionError):
        job.perform()


def test_withdrawal_takes_queued_requests_out_and_marks_the_batch(queue: RequestQueue, redis: Redis) -> None:
    requests = _requests(2500)
    _enqueue(queue, requests)
    _enqueue(queue, _requests(1, 5000), priority="high")
    _start(redis, f"{BATCH}-0", "w", 60)
    queue.withdraw(_ids(requests[:2000]), batch_id=BATCH)
    assert [entry.decode() for entry in redis.lrange(LIST, 0, -1)] == _ids(requests[2000:])
    assert queue.depth("m") == {"high": 1, "normal": 500, "low": 0}
    assert redis.ttl(cancel_key(BATCH)) > 3600
    # The running one stays with its worker, which looks at the key.
    assert queue.live(_ids(requests)) == {f"{BATCH}-0", *_ids(requests[2000:])}
    assert redis.keys("cidermill:leaving:*") == []


def test_a_withdrawal_that_is_cut_short_leaves_nothing_for_long(
    queue: RequestQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    _enqueue(queue, _requests(2))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entries, "delete", die)
    with pytest.raises(KeyboardInterrupt):
        queue.withdraw(_ids(_requests(1)), batch_id=BATCH)
    assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-1".encode()]
    assert 0 < redis.ttl(f"rq:job:{BATCH}-0") <= 60
    assert redis.ttl(f"rq:job:{BATCH}-1") == -1


def test_what_is_held_waits_or_is_on_its_way_or_under_a_lease(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(3))
    _start(redis, f"{BATCH}-0", "w", 60)
    redis.lmove(LIST, f"{LIST}:intermediate", "LEFT", "RIGHT")
    redis.set("rq:queue:forged:low", 1)
    redis.sadd("rq:queues", "rq:queue:forged:low", b"\xff")
    assert sorted(queue.held()) == _ids(_requests(3))


def test_ended_lease_puts_the_request_at_the_head_with_one_attempt_less(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(2))
    _start(redis, f"{BATCH}-1", "w", -1)
    queue.maintain("m")
    assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-1".encode(), f"{BATCH}-0".encode()]
    assert redis.hget(f"rq:job:{BATCH}-1", "retries_left") == b"0"
    assert redis.zcard(LEASES) == 0
    assert attempts.lost_workers(redis, f"{BATCH}-1") == ("w",)


def test_last_ended_lease_sets_the_request_aside(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    for worker in ("first", "second"):
        _start(redis, f"{BATCH}-0", worker, -1)
        queue.maintain("m")
    reason = "2 workers died while running it: first, second"
    assert queue.set_aside("m") == [SetAside(f"{BATCH}-0", reason, ("first", "second"))]
    assert queue.set_aside("other") == []
    assert queue.live([f"{BATCH}-0"]) == set()
    queue.forget([f"{BATCH}-0"])
    assert queue.set_aside("m") == []
    assert redis.keys(f"*{BATCH}*") == []


def test_lease_that_holds_is_left_alone(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    execution = _start(redis, f"{BATCH}-0", "w", 60)
    queue.maintain("m")
    registry = SafeQueue("m:normal", redis).started_job_registry
    assert registry.holds(execution)
    assert redis.llen(LIST) == 0


def test_looking_at_the_leases_ends_none(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    registry = SafeQueue("m:normal", redis).started_job_registry
    assert registry.count == 1
    assert registry.get_job_ids() == [f"{BATCH}-0"]
    assert redis.zcard(LEASES) == 1


def test_renewal_is_on_the_servers_clock_and_revives_nothing(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    execution = _start(redis, f"{BATCH}-0", "w", -1)
    registry = SafeQueue("m:normal", redis).started_job_registry
    assert registry.renew(redis, execution, 30)
    score = redis.zscore(LEASES, execution.composite_key)
    assert score == pytest.approx(server_time(redis) + 30, abs=2)
    redis.zrem(LEASES, execution.composite_key)
    assert not registry.renew(redis, execution, 30)
    assert redis.zcard(LEASES) == 0


def test_nothing_is_taken_away_soon_after_a_start_of_the_server(redis: Redis) -> None:
    up = redis.info("server")["uptime_in_seconds"]
    queue = RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=up + 1000)
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    queue.maintain("m")
    assert redis.zcard(LEASES) == 1


def test_a_server_settles_for_a_minute(server: PrivateServer) -> None:
    redis = connect(server.url)
    queue = RequestQueue(redis, max_attempts=2, request_timeout_seconds=60)
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    queue.maintain("m")
    assert redis.zcard(LEASES) == 1


def test_one_process_cleans_at_a_time(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    assert SafeQueue("m:normal", redis, settling_seconds=0).acquire_maintenance_lock()
    queue.maintain("m")
    assert redis.zcard(LEASES) == 1
    assert 0 < redis.ttl("rq:clean_registries:m:normal") <= 3


def test_a_forged_turn_to_clean_ends(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    redis.set("rq:clean_registries:m:normal", "for ever")
    queue.maintain("m")
    queue.maintain("m")
    assert redis.zcard(LEASES) == 0


def test_request_stranded_on_its_way_to_a_worker_is_given_back(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(2))
    redis.lmove(LIST, f"{LIST}:intermediate")
    queue.maintain("m")
    assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-1".encode()]  # seen for the first time
    redis.expire(f"{LIST}:intermediate:first_seen:{BATCH}-0", FIRST_SEEN_SECONDS - GRACE_SECONDS - 1)
    queue.maintain("m")
    assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-0".encode(), f"{BATCH}-1".encode()]
    assert redis.llen(f"{LIST}:intermediate") == 0
    assert redis.hget(f"rq:job:{BATCH}-0", "retries_left") == b"1"


def test_a_request_that_cannot_be_given_back_stays_on_its_way(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(2))
    way = SafeQueue("m:normal", redis, settling_seconds=0).intermediate_queue
    redis.rename(LIST, way.key)
    redis.set(LIST, "forged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        way.give_back(f"{BATCH}-0")
    assert redis.lrange(way.key, 0, -1) == [f"{BATCH}-0".encode(), f"{BATCH}-1".encode()]
    queue.remove_impostors(["m"])
    for _ in range(2):  # the second time it is no longer there
        way.give_back(f"{BATCH}-0")
        assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-0".encode()]
        assert redis.lrange(way.key, 0, -1) == [f"{BATCH}-1".encode()]


def test_a_forged_entry_on_the_way_is_dropped_and_keeps_no_other_queue_from_being_cleaned(
    queue: RequestQueue, redis: Redis
) -> None:
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    redis.rpush("rq:queue:m:high:intermediate", "evil")
    redis.set("rq:job:evil", "x")
    queue.maintain("m")
    assert redis.llen("rq:queue:m:high:intermediate") == 0
    assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-0".encode()]


def test_a_queue_that_cannot_be_cleaned_keeps_no_other_from_it(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "w", -1)
    redis.set("rq:wip:m:high", "forged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        queue.maintain("m")
    assert redis.lrange(LIST, 0, -1) == [f"{BATCH}-0".encode()]


def test_what_is_no_id_among_the_failed_ones_is_removed(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    _start(redis, f"{BATCH}-0", "first", -1)
    redis.hset(f"rq:job:{BATCH}-0", "retries_left", 0)
    queue.maintain("m")
    redis.zadd("rq:failed:m:normal", {b"\xff\xfe": 1e12, "no id": 1e12})
    assert [aside.request_id for aside in queue.set_aside("m")] == [f"{BATCH}-0"]
    assert redis.zrange("rq:failed:m:normal", 0, -1) == [f"{BATCH}-0".encode()]


def test_dequeue_goes_by_priority_and_skips_what_is_gone(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(2))
    _enqueue(queue, _requests(1, 7), priority="high")
    redis.delete(f"rq:job:{BATCH}-0")
    redis.lpush(LIST, f"{BATCH}-1")  # listed twice
    names: list[Priority] = ["high", "normal", "low"]
    queues = [SafeQueue(queue_name("m", name), redis) for name in names]

    def take() -> str | None:
        found = SafeQueue.dequeue_any(queues, None, redis)
        if found is None:
            return None
        redis.hset(Job.key_for(found[0].id), "status", "started")
        return found[0].id

    assert [take(), take(), take()] == [f"{BATCH}-7", f"{BATCH}-1", None]


def test_unreadable_entry_is_reported_and_not_live(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(2))
    redis.hset(f"rq:job:{BATCH}-0", "created_at", "yesterday")
    found = SafeQueue.dequeue_any([SafeQueue("m:normal", redis)], None, redis)
    assert found is not None
    assert found[0].id == f"{BATCH}-1"
    assert [aside.request_id for aside in queue.set_aside("m")] == [f"{BATCH}-0"]
    assert queue.live([f"{BATCH}-0"]) == set()
    assert _enqueue(queue, _requests(1)) == 1
    assert queue.set_aside("m") == []


def test_forget_ends_a_running_request(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(1))
    execution = _start(redis, f"{BATCH}-0", "w", 60)
    quarantine(redis, f"{BATCH}-0", "m:normal")
    queue.forget([f"{BATCH}-0"])
    assert not SafeQueue("m:normal", redis).started_job_registry.holds(execution)
    assert redis.exists(f"rq:job:{BATCH}-0", "cidermill:quarantine") == 0


def test_demand_is_what_waits_per_model(queue: RequestQueue, redis: Redis) -> None:
    _enqueue(queue, _requests(2))
    _enqueue(queue, _requests(1, 7), priority="high")
    queue.enqueue(_requests(1, 9), model="org/other@4bit", priority="low")
    queue.enqueue(_requests(1, 10), model="emptied", priority="low")
    queue.forget([f"{BATCH}-10"])
    assert queue.demand() == {"m": 3, "org/other@4bit": 1}
