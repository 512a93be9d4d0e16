"""The row of deaths of a machine: what counts, what is forgotten, and who writes it."""

import pytest
from redis import Redis
from rq.executions import Execution
from rq.serializers import JSONSerializer

from api.queue import deaths
from api.queue.deaths import Death, Row
from api.queue.hardening import SafeJob
from api.queue.leases import server_time
from api.queue.presence import announce
from api.queue.requests import RequestQueue
from api.schemas import GenerationRequest, WorkerInfo

BATCH = "batch_01TEST"


def _dies(redis: Redis, request_id: str, worker: str, host: str | None) -> None:
    """A worker takes the request and falls silent. host: as it was announced; None: it never was."""
    if host is not None:
        info = WorkerInfo(
            name=worker, model="m", state="busy", host=host, pid=1, chip="", drafter="", verification="", seen_at=1.0
        )
        announce(redis, info, 0.001)
    redis.lrem("rq:queue:m:normal", 1, request_id)
    job = SafeJob.fetch(request_id, connection=redis, serializer=JSONSerializer)
    with redis.pipeline() as pipeline:
        execution = Execution.create(job, 60, pipeline, worker_name=worker)
        job.prepare_for_execution(worker, pipeline)
        pipeline.execute()
    redis.zadd("rq:wip:m:normal", {execution.composite_key: server_time(redis) - 1})


def _enqueue(queue: RequestQueue, count: int) -> list[str]:
    requests = [GenerationRequest(request_id=f"{BATCH}-{index}", prompt="p") for index in range(count)]
    queue.enqueue(requests, model="m", priority="normal")
    return [request.request_id for request in requests]


@pytest.mark.parametrize(
    ("requests", "count"),
    [("", 0), ("a", 1), ("ab", 2), ("aa", 2), ("aaaa", 2), ("aab", 3), ("aaaab", 3), ("abc", 3), ("aabb", 4)],
)
def test_a_request_counts_for_two_deaths_at_most(requests: str, count: int) -> None:
    assert Row(tuple(Death(name, "w") for name in requests)).in_a_row == count


def test_who_ends_the_lease_notes_the_death_at_the_machine_of_the_worker(queue: RequestQueue, redis: Redis) -> None:
    first, second, third = _enqueue(queue, 3)
    _dies(redis, first, "w-1", "mini")
    _dies(redis, second, "w-2", "studio")
    _dies(redis, third, "never-seen", None)
    queue.maintain("m")
    _dies(redis, first, "w-3", "mini")
    queue.maintain("m")
    assert deaths.rows(redis, ["mini", "studio", "other"]) == {
        "mini": Row((Death(first, "w-1"), Death(first, "w-3")), 2),
        "studio": Row((Death(second, "w-2"),), 1),
        "other": Row(),
    }
    assert sorted(key.decode() for key in redis.keys("cidermill:deaths:*")) == [
        "cidermill:deaths:mini",
        "cidermill:deaths:studio",
    ]
    assert [aside.workers for aside in queue.set_aside("m")] == [("w-1", "w-3")]
    assert 7 * 24 * 3600 - 60 < redis.ttl("cidermill:deaths:mini") <= 7 * 24 * 3600
    deaths.end_rows(redis, ["mini"])
    assert deaths.rows(redis, ["mini"]) == {"mini": Row()}


def test_a_row_that_is_forged_stops_nobody_and_counts_for_nothing(queue: RequestQueue, redis: Redis) -> None:
    (first,) = _enqueue(queue, 1)
    redis.set("cidermill:deaths:mini", "no list")
    _dies(redis, first, "w-1", "mini")
    queue.maintain("m")
    assert redis.lrange("rq:queue:m:normal", 0, -1) == [first.encode()]
    assert deaths.rows(redis, ["mini"]) == {"mini": Row()}
    redis.delete("cidermill:deaths:mini")
    redis.rpush("cidermill:deaths:mini", b"\xff\xfe", "", "a b c", "x" * 10_000, f"{first} w-1", "y " + "z" * 511)
    assert deaths.rows(redis, ["mini"]) == {"mini": Row((Death(first, "w-1"),), 6)}


def test_a_row_is_bounded(redis: Redis) -> None:
    for number in range(40):
        with redis.pipeline() as pipeline:
            deaths.note(pipeline, "mini", Death(f"{BATCH}-{number}", "w"))
            pipeline.execute()
    (row,) = deaths.rows(redis, ["mini"]).values()
    assert [death.request_id for death in row.deaths] == [f"{BATCH}-{number}" for number in range(10, 40)]


def test_an_answer_ends_the_row_that_was_seen_and_none_that_has_grown(redis: Redis) -> None:
    for number in range(2):
        with redis.pipeline() as pipeline:
            deaths.note(pipeline, "mini", Death(str(number), "w"))
            pipeline.execute()
    seen = deaths.rows(redis, ["mini"])["mini"]
    redis.rpush("cidermill:deaths:mini", "2 w")
    deaths.end_row(redis, "mini", seen)
    assert deaths.rows(redis, ["mini"])["mini"].in_a_row == 3
    deaths.end_row(redis, "mini", deaths.rows(redis, ["mini"])["mini"])
    assert deaths.rows(redis, ["mini"]) == {"mini": Row()}
