from redis import Redis

from api.queue.presence import WORKERS_KEY, announce, live_workers, withdraw
from api.schemas import WorkerInfo


def _info(name: str, tokens: int = 0) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        model="m",
        state="busy",
        host="h",
        pid=1,
        chip="c",
        drafter="d",
        verification="tree",
        tokens=tokens,
        seen_at=1.0,
    )


def test_workers_are_listed_by_name_with_their_newest_state(redis: Redis) -> None:
    announce(redis, _info("b"), 60)
    announce(redis, _info("a"), 60)
    announce(redis, _info("b", tokens=5), 60)
    assert live_workers(redis) == [_info("a"), _info("b", tokens=5)]


def test_withdrawn_and_silent_workers_are_gone(redis: Redis) -> None:
    for name in ("leaving", "silent", "alive"):
        announce(redis, _info(name), 60)
    withdraw(redis, "leaving")
    redis.delete("cidermill:worker:silent")
    assert live_workers(redis) == [_info("alive")]
    assert redis.smembers(WORKERS_KEY) == {b"alive"}


def test_announcement_expires(redis: Redis) -> None:
    announce(redis, _info("a"), 12.5)
    assert 12_000 < redis.pttl("cidermill:worker:a") <= 12_500


def test_unreadable_entry_is_left_out(redis: Redis) -> None:
    announce(redis, _info("a"), 60)
    redis.set("cidermill:worker:a", "{}")
    assert live_workers(redis) == []
