"""Workers that were seen of late: those that died stay known for a day, and no more than a bounded number of them."""

import pytest
from redis import Redis

from api.queue.last_seen import MOST_SEEN, SEEN_KEY, SEEN_SECONDS, last_seen, of_worker
from api.queue.orders import Order, give
from api.queue.presence import announce, live_workers, withdraw
from api.schemas import WorkerInfo


def _info(name: str, seen_at: float = 1.0) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        model="m",
        state="busy",
        host="mini",
        pid=1,
        chip="c",
        drafter="d",
        verification="tree",
        request_id="batch_1-0",
        tail="secret",
        seen_at=seen_at,
    )


def test_a_dead_worker_is_remembered_without_its_text_and_one_that_ended_is_not(redis: Redis) -> None:
    for name in ("dead", "ended", "alive"):
        announce(redis, _info(name), 60)
    give(redis, ["ended"], Order.DRAIN)
    withdraw(redis, "ended")
    redis.delete("cidermill:worker:dead")
    assert [info.name for info in live_workers(redis)] == ["alive"]
    seen = {one.info.name: one for one in last_seen(redis)}
    assert seen.keys() == {"dead", "alive"}
    assert seen["dead"].info == _info("dead").model_copy(update={"tail": ""})
    dead = of_worker(redis, "dead")
    assert dead is not None
    assert dead.host == "mini"
    assert redis.keys("*ended*") == []


def test_how_long_ago_is_by_the_clock_of_the_server(redis: Redis) -> None:
    announce(redis, _info("early", seen_at=10**10), 60)
    announce(redis, _info("late", seen_at=-5.0), 60)
    redis.pexpire("cidermill:seen:early", 1000 * SEEN_SECONDS - 7000)
    found = last_seen(redis)
    assert [one.info.name for one in found] == ["late", "early"]
    assert [round(one.seconds_ago) for one in found] == [0, 7]


def test_the_list_is_bounded(redis: Redis) -> None:
    for number in range(MOST_SEEN + 5):
        announce(redis, _info(f"w-{number}", seen_at=number), 60)
    assert redis.zcard(SEEN_KEY) == MOST_SEEN
    names = {one.info.name for one in last_seen(redis)}
    assert names == {f"w-{number}" for number in range(5, MOST_SEEN + 5)}


@pytest.mark.parametrize("name", ["", "x" * 300, "list", "garbage", "huge", "namesake", "nobody"])
def test_what_cannot_be_read_is_nobody(redis: Redis, name: str) -> None:
    announce(redis, _info("good"), 60)
    redis.rpush("cidermill:seen:list", "x")
    redis.set("cidermill:seen:garbage", b"\xff{", ex=60)
    redis.set("cidermill:seen:huge", "x" * 2**20, ex=60)
    redis.set("cidermill:seen:namesake", _info("good").model_dump_json(), ex=60)
    redis.zadd(SEEN_KEY, dict.fromkeys(("list", "garbage", "huge", "namesake", "nobody", b"\xff"), 5))
    assert of_worker(redis, name) is None
    assert [one.info.name for one in last_seen(redis)] == ["good"]


def test_a_list_of_another_type_is_empty(redis: Redis) -> None:
    redis.set(SEEN_KEY, "x")
    assert last_seen(redis) == []


def test_the_name_of_a_machine_has_a_length(redis: Redis) -> None:
    announce(redis, _info("w").model_copy(update={"host": "h" * 256}), 60)
    assert of_worker(redis, "w") is None
