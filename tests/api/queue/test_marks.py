"""How far batches have been put into a Redis, and whose turn it is to put more of them there."""

import threading

import pytest
from redis import Redis, exceptions

from api.queue import marks
from api.queue.requests import RequestQueue

DAY = 24 * 3600


def move(queue: RequestQueue, batch_id: str, index: int) -> None:
    queue.move_mark_up(batch_id, queue.marks([batch_id])[batch_id], index)


def indices(queue: RequestQueue, *batch_ids: str) -> dict[str, int]:
    return {batch_id: mark.below for batch_id, mark in queue.marks(batch_ids).items()}


def test_a_mark_starts_at_none_put_and_is_kept_where_it_was(queue: RequestQueue) -> None:
    assert queue.start_mark("a") == 0
    move(queue, "a", 1000)
    assert queue.start_mark("a") == 1000


def test_marks_are_those_of_batches_that_were_placed_here_in_the_order_asked(queue: RequestQueue) -> None:
    for batch_id, mark in (("a", 7), ("b", 5)):
        queue.start_mark(batch_id)
        move(queue, batch_id, mark)
    assert list(indices(queue, "b", "elsewhere", "a").items()) == [("b", 5), ("a", 7)]
    assert queue.marks([]) == {}


def test_a_mark_that_is_asked_for_does_not_expire(queue: RequestQueue, redis: Redis) -> None:
    queue.start_mark("a")
    redis.expire(marks.mark_key("a"), 5)
    queue.marks(["a"])
    assert 29 * DAY < redis.ttl(marks.mark_key("a")) <= 30 * DAY
    for act in (lambda: move(queue, "a", 7), lambda: queue.move_mark_down("a", 3), lambda: queue.start_mark("a")):
        redis.expire(marks.mark_key("a"), 5)
        act()
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


def test_waiting_ends_with_an_error(queue: RequestQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "WAIT_SECONDS", 0.1)
    busy = "others have put requests into queue m:normal for 0.1 s; try again"
    with queue.topping_up("m", "normal", wait=False), pytest.raises(exceptions.LockError, match=busy):
        queue.topping_up("m", "normal", wait=True).__enter__()


@pytest.mark.parametrize("seconds", [None, 3600])
def test_a_turn_without_an_end_is_nobodys(queue: RequestQueue, redis: Redis, seconds: int | None) -> None:
    redis.set("cidermill:topping-up:m:normal", "x", ex=seconds)
    with queue.topping_up("m", "normal", wait=False) as first:
        assert not first
    with queue.topping_up("m", "normal", wait=False) as second:
        assert second
    redis.rpush("cidermill:topping-up:m:normal", "x")
    with queue.topping_up("m", "normal", wait=True) as third:
        assert third
        assert 0 < redis.ttl("cidermill:topping-up:m:normal") <= 30


@pytest.mark.parametrize("nonsense", ["", "abc", "-5", "1.5", "9" * 16, "9" * 5000])
def test_a_mark_that_is_no_number_is_none_put(queue: RequestQueue, redis: Redis, nonsense: str) -> None:
    redis.set(marks.mark_key("a"), nonsense)
    assert indices(queue, "a") == {"a": 0}
    move(queue, "a", 5)
    assert indices(queue, "a") == {"a": 5}
    redis.set(marks.mark_key("a"), nonsense)
    assert queue.start_mark("a") == 0
    move(queue, "a", 10**15 - 1)
    assert indices(queue, "a") == {"a": 10**15 - 1}


def test_a_mark_that_the_server_has_forgotten_is_not_moved(queue: RequestQueue, redis: Redis) -> None:
    """Else requests below it that the server has forgotten, too, would count as put."""
    queue.start_mark("a")
    queue.start_mark("b")
    seen = queue.marks(["b"])["b"]
    redis.delete(marks.mark_key("b"))
    queue.move_mark_up("b", seen, 7)
    queue.move_mark_down("b", 0)
    assert indices(queue, "a", "b") == {"a": 0}


def test_a_mark_that_was_made_anew_is_not_moved_up_from_the_old_one(queue: RequestQueue, redis: Redis) -> None:
    queue.start_mark("a")
    move(queue, "a", 4)
    seen = queue.marks(["a"])["a"]
    redis.delete(marks.mark_key("a"))
    queue.start_mark("a")
    queue.move_mark_up("a", seen, 8)
    assert indices(queue, "a") == {"a": 0}
    seen = queue.marks(["a"])["a"]
    queue.start_mark("a")  # at the same place: what is below it is looked at again
    queue.move_mark_up("a", seen, 8)
    assert indices(queue, "a") == {"a": 0}


def test_a_mark_moves_up_from_what_was_seen_and_down_from_anywhere(queue: RequestQueue) -> None:
    queue.start_mark("a")
    zero = queue.marks(["a"])["a"]
    move(queue, "a", 1000)
    queue.move_mark_down("a", 2000)
    assert indices(queue, "a") == {"a": 1000}
    queue.move_mark_down("a", 0)
    queue.move_mark_up("a", zero, 5)  # it is 0 again, and another one
    assert indices(queue, "a") == {"a": 0}


def test_a_mark_of_an_older_version_is_taken_over(queue: RequestQueue, redis: Redis) -> None:
    redis.set(marks.mark_key("a"), 1000)
    assert indices(queue, "a") == {"a": 1000}
    move(queue, "a", 2000)
    assert queue.start_mark("a") == 2000


def test_a_mark_and_a_turn_of_other_types_are_removed(queue: RequestQueue, redis: Redis) -> None:
    redis.rpush(marks.mark_key("a"), 7)
    redis.rpush(marks.turn_key("m:normal"), 7)
    queue.start_mark("b")
    queue.remove_impostors(["m"], ["a", "b", "c"])
    assert indices(queue, "a", "b") == {"b": 0}
    assert redis.exists(marks.turn_key("m:normal")) == 0
