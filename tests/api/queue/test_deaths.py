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
    assert Row(tuple(Death(name, "w", 0, 0) for name in requests)).in_a_row == count


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([(0, 50), (10, 51), (20, 52)], 1),  # the power was cut
        ([(0, 50), (10, 51), (20, 96)], 2),  # the third went on for longer than a lease
        ([(0, 10), (13, 20), (23, 30)], 3),  # one after the other, however fast
        ([(0, 10), (12, 12), (11, 11)], 1),  # heard of once a second
        ([(0, 10), (9, 20), (19, 30)], 2),  # the first and the third never met
        ([(0, 50), (10, 51), (100, 150), (110, 151), (200, 201)], 3),
    ],
)
def test_deaths_at_once_are_one_event(times: list[tuple[int, int]], count: int) -> None:
    row = Row(tuple(deaths.death(str(n), f"w-{n}", *pair) for n, pair in enumerate(times)))
    assert row.in_a_row == count
    assert sorted(death for event in row.events for death in event) == sorted(row.deaths)


def test_a_request_that_is_there_each_time_counts_twice_and_those_beside_it_on_their_own() -> None:
    poison = [Death("p", f"w-{n}", 10_000 * n, 10_000 * n + 50) for n in range(4)]
    beside = [Death(f"g-{n}", f"v-{n}", 10_000 * n, 10_000 * n + 50) for n in range(4)]
    assert Row(tuple(poison)).in_a_row == 2
    assert Row(tuple(poison + beside)).in_a_row == 4
    assert Row((*poison, beside[3])).in_a_row == 3


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_what_is_no_time_counts_as_the_epoch(seconds: float) -> None:
    assert deaths.death("r", "w", seconds, 2.5) == Death("r", "w", 0, 2500)


def test_a_death_is_withdrawn_alone_and_as_often_as_it_is_there(redis: Redis) -> None:
    rows = [Death("a", "w-1", 1, 2), Death("a", "w-2", 1, 2), Death("b", "w-1", 3, 4), Death("a", "w-1", 1, 2)]
    for one in rows:
        deaths.note(redis, "mini", one)
    assert deaths.withdraw(redis, "mini", rows[0]) == 2
    assert deaths.withdraw(redis, "mini", rows[0]) == 0
    assert deaths.rows(redis, ["mini"]) == {"mini": Row((rows[1], rows[2]), 2)}


def test_who_ends_the_lease_notes_the_death_at_the_machine_of_the_worker(queue: RequestQueue, redis: Redis) -> None:
    first, second, third = _enqueue(queue, 3)
    _dies(redis, first, "w-1", "mini")
    _dies(redis, second, "w-2", "studio")
    _dies(redis, third, "never-seen", None)
    queue.maintain("m")
    _dies(redis, first, "w-3", "mini")
    queue.maintain("m")
    found = deaths.rows(redis, ["mini", "studio", "other"])
    assert {host: [death[:2] for death in row.deaths] for host, row in found.items()} == {
        "mini": [(first, "w-1"), (first, "w-3")],
        "studio": [(second, "w-2")],
        "other": [],
    }
    [death] = found["studio"].deaths
    assert 0 <= 1000 * server_time(redis) - death.began < 60_000
    assert death.silent == death.began  # it had last told of itself in 1970
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
    redis.rpush("cidermill:deaths:mini", b"\xff\xfe", "", "a b c", "x" * 10_000, f"{first} w-1 5 6", "y " + "z" * 511)
    redis.rpush(
        "cidermill:deaths:mini", *(f"{first} w-1 1 {time}" for time in ("-1", "nan", "1e9", "9" * 16, "\u0663"))
    )
    assert deaths.rows(redis, ["mini"]) == {"mini": Row((Death(first, "w-1", 5, 6),), 11)}


def test_a_row_is_bounded(redis: Redis) -> None:
    for number in range(40):
        with redis.pipeline() as pipeline:
            deaths.note(pipeline, "mini", Death(f"{BATCH}-{number}", "w", 0, 0))
            pipeline.execute()
    (row,) = deaths.rows(redis, ["mini"]).values()
    assert [death.request_id for death in row.deaths] == [f"{BATCH}-{number}" for number in range(10, 40)]


def test_an_answer_ends_the_row_that_was_seen_and_none_that_has_grown(redis: Redis) -> None:
    for number in range(2):
        with redis.pipeline() as pipeline:
            deaths.note(pipeline, "mini", Death(str(number), "w", 0, 0))
            pipeline.execute()
    seen = deaths.rows(redis, ["mini"])["mini"]
    redis.rpush("cidermill:deaths:mini", "2 w 0 0")
    deaths.end_row(redis, "mini", seen)
    assert deaths.rows(redis, ["mini"])["mini"].in_a_row == 3
    deaths.end_row(redis, "mini", deaths.rows(redis, ["mini"])["mini"])
    assert deaths.rows(redis, ["mini"]) == {"mini": Row()}
