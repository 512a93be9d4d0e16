"""How far batches have been put into a Redis, and whose turn it is to put more of them there."""

import threading

import pytest
from redis import Redis, exceptions

from api.queue import marks
from api.queue.requests import RequestQueue

DAY = 24 * 3600


def test_a_mark_starts_at_none_put_and_is_kept_where_it_was(queue: RequestQueue) -> None:
    assert queue.start_mark("a") == 0
    queue.move_mark("a", 1000)
    assert queue.start_mark("a") == 1000


def test_marks_are_those_of_batches_that_were_placed_here_in_the_order_asked(queue: RequestQueue) -> None:
    for batch_id, mark in (("a", 7), ("b", 5)):
        queue.start_mark(batch_id)
        queue.move_mark(batch_id, mark)
    assert list(queue.marks(["b", "elsewhere", "a"]).items()) == [("b", 5), ("a", 7)]
    assert queue.marks([]) == {}


def test_a_mark_that_is_asked_for_does_not_expire(queue: RequestQueue, redis: Redis) -> None:
    queue.start_mark("a")
    redis.expire(marks.mark_key("a"), 5)
    queue.marks(["a"])
    assert 29 * DAY < redis.ttl(marks.mark_key("a")) <= 30 * DAY
    redis.expire(marks.mark_key("a"), 5)
    queue.move_mark("a", 1)
    assert 29 * DAY < redis.ttl(marks.mark_key("a")) <= 30 * DAY


def test_a_turn_is_had_by_one_at_a_time_and_per_queue(queue: RequestQueue, redis: Redis) -> None:
    with queue.topping_up("m", "normal", wait=False) as first:
        with queue.topping_up("m", "normal", wait=False) as second, queue.topping_up("m", "low", wait=False) as other:
            assert (first, second, other) == (True, False, True)
        assert redis.exists("cidermill:topping-up:m:normal") == 1  # the one that had no turn ended none
        assert 0 < redis.ttl("cidermill:topping-up:m:normal") <= 30
    assert redis.keys("cidermill:topping-up:*") == []


def test_who_waits_has_the_next_turn(queue: RequestQueue) -> None:
    had: list[bool] = []

    def wait() -> None:
        with queue.topping_up("m", "normal", wait=True) as turn:
            had.append(turn)

    with queue.topping_up("m", "normal", wait=False):
        thread = threading.Thread(target=wait)
        thread.start()
        assert had == []
    thread.join(20)
    assert had == [True]


def test_a_turn_that_took_too_long_does_not_end_the_next_one(queue: RequestQueue, redis: Redis) -> None:
    key = "cidermill:topping-up:m:normal"
    with queue.topping_up("m", "normal", wait=False):
        redis.set(key, "another's")
    assert redis.get(key) == b"another's"


def test_waiting_ends_with_an_error(queue: RequestQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis.lock.Lock.acquire", lambda *_, **__: _refuse())
    with pytest.raises(exceptions.LockError), queue.topping_up("m", "normal", wait=True):
        pass


def _refuse() -> bool:
    raise exceptions.LockError("no turn")
