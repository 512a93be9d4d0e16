"""Requests as they are taken from queues: by priority, and within one by what their prompts begin with."""

import pytest
from redis import Redis

from api.queue.prefix_order import TakenLast
from api.queue.requests import RequestQueue, queue_name
from api.queue.safe_queue import SafeQueue
from api.schemas import PRIORITIES, GenerationRequest, Priority

HEADERS = {kind: f"These are the rules of kind {kind}. " * 20 for kind in "abc"}


def put(queue: RequestQueue, kinds: str, batch: str, priority: Priority = "normal") -> list[str]:
    requests = [
        GenerationRequest(request_id=f"{batch}-{number}", prompt=f"{HEADERS[kind]}Question {number}")
        for number, kind in enumerate(kinds)
    ]
    queue.enqueue(requests, model="m", priority=priority)
    return [request.request_id for request in requests]


def worker(redis: Redis) -> list[SafeQueue]:
    taken_last = TakenLast()
    return [SafeQueue(queue_name("m", priority), redis, taken_last=taken_last) for priority in PRIORITIES]


def take(redis: Redis, queues: list[SafeQueue]) -> str | None:
    found = SafeQueue.dequeue_any(queues, None, redis)
    return None if found is None else found[0].id


def test_batches_that_lie_mixed_are_served_kind_by_kind(queue: RequestQueue, redis: Redis) -> None:
    ids = put(queue, "abcabcabc", "batch")
    mine = worker(redis)
    assert [take(redis, mine) for _ in range(10)] == [*ids[0::3], *ids[1::3], *ids[2::3], None]


def test_each_worker_stays_with_its_kind(queue: RequestQueue, redis: Redis) -> None:
    ids = put(queue, "abababab", "batch")
    one, other = worker(redis), worker(redis)
    taken = [(take(redis, one), take(redis, other)) for _ in range(4)]
    assert taken == list(zip(ids[0::2], ids[1::2], strict=True))


def test_priorities_come_first_and_share_what_was_taken_last(queue: RequestQueue, redis: Redis) -> None:
    normal = put(queue, "abab", "normal")
    mine = worker(redis)
    assert take(redis, mine) == normal[0]
    high = put(queue, "cb", "high", "high")
    assert [take(redis, mine) for _ in range(5)] == [*high, normal[1], normal[3], normal[2]]


@pytest.mark.parametrize("gone", ["no entry", "no prefix", "damaged"])
def test_what_is_skipped_leaves_the_worker_with_its_kind(queue: RequestQueue, redis: Redis, gone: str) -> None:
    ids = put(queue, "aabab", "batch")
    mine = worker(redis)
    assert take(redis, mine) == ids[0]
    key = f"rq:job:{ids[1]}"
    if gone == "no entry":
        redis.delete(key)
    elif gone == "no prefix":
        redis.hset(key, mapping={"prefix": "", "status": "finished"})
    else:
        redis.hset(key, mapping={"prefix": "x" * 5000, "timeout": "x"})
    left = [take(redis, mine) for _ in range(3)]
    assert left == [ids[3], ids[2], ids[4]]
