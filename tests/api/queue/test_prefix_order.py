"""The order of serving, by the script that the server runs: real requests are one field of a hash each here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from api.queue.prefix_order import ROUND, ROUND_SECONDS, TAKE_IN_ORDER

LIST, INTERMEDIATE, PASSED = "rq:queue:m:normal", "rq:queue:m:normal:intermediate", "cidermill:round:m:normal"
TAKE = TAKE_IN_ORDER + "return take_in_order(KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))"
KINDS = ("", "aaaa", "aaaabbbb", "aaaacccc", "dddd")


def take(redis: Redis, own: str = "", size: int = ROUND, seconds: int = ROUND_SECONDS) -> str | None:
    keys = (LIST, INTERMEDIATE, PASSED)
    taken = cast(bytes | None, redis.eval(TAKE, 3, *keys, own, str(size), str(seconds)))
    return None if taken is None else taken.decode()


def put(redis: Redis, *keys: str, first: int = 0) -> list[str]:
    """Requests of those keys at the tail; their ids."""
    ids = [f"r-{number}" for number, _ in enumerate(keys, first)]
    with redis.pipeline() as pipeline:
        for request_id, key in zip(ids, keys, strict=True):
            pipeline.hset(f"rq:job:{request_id}", mapping={"status": "queued", **({"prefix": key} if key else {})})
            pipeline.rpush(LIST, request_id)
        pipeline.execute()
    return ids


def waiting(redis: Redis) -> list[str]:
    return [entry.decode() for entry in redis.lrange(LIST, 0, -1)]


def served(redis: Redis, kinds: dict[str, str], own: str = "") -> list[str]:
    """All that waits, as one worker takes it."""
    order = []
    while (request_id := take(redis, own)) is not None:
        order.append(request_id)
        own = kinds[request_id]
    return order


def test_mixed_kinds_come_together_and_each_stays_in_order(redis: Redis) -> None:
    ids = put(redis, *["aaaa", "bbbb", "cccc"] * 4)
    kinds = dict(zip(ids, ["aaaa", "bbbb", "cccc"] * 4, strict=True))
    assert served(redis, kinds) == ids[0::3] + ids[1::3] + ids[2::3]
    assert redis.exists(PASSED) == 0
    assert redis.lrange(INTERMEDIATE, 0, -1) == [entry.encode() for entry in ids[0::3] + ids[1::3] + ids[2::3]]


def test_of_several_the_longest_shared_beginning_wins_and_at_equal_length_the_first(redis: Redis) -> None:
    put(redis, "dddd", "aaaaeeee", "aaaabbbb1111", "aaaabbbb2222", "aaaabbbb")
    assert [take(redis, "aaaabbbb2222") for _ in range(5)] == ["r-3", "r-2", "r-4", "r-1", "r-0"]


def test_one_kind_whose_prompts_go_on_differently_is_served_in_order_and_keeps_no_round(redis: Redis) -> None:
    ids = put(redis, *(f"aaaa{number:04x}" for number in range(8)))
    for request_id, own in zip(ids, ["", *(f"aaaa{number:04x}" for number in range(7))], strict=True):
        assert take(redis, own) == request_id
        assert redis.exists(PASSED) == 0


def test_a_round_of_the_default_size_passes_its_head_over_that_often_less_one(redis: Redis) -> None:
    put(redis, "bbbb", *["aaaa"] * 200)
    taken = [take(redis, "aaaa") for _ in range(ROUND)]
    assert taken == [f"r-{number}" for number in range(1, ROUND)] + ["r-0"]


def test_a_rare_kind_waits_no_longer_wherever_it_stands(redis: Redis) -> None:
    put(redis, *["aaaa"] * 30, "bbbb", *["aaaa"] * 200)
    order = [take(redis, "aaaa") for _ in range(150)]
    assert order.index("r-30") <= 30 + ROUND - 1
    assert redis.exists(PASSED) == 0


def test_after_its_time_a_round_is_served_in_order_and_then_a_new_one_begins(redis: Redis) -> None:
    put(redis, *["aaaa", "bbbb"] * 4)
    assert [take(redis, "bbbb"), take(redis, "bbbb")] == ["r-1", "r-3"]
    since = int(redis.hget(PASSED, "since") or 0)
    redis.hset(PASSED, "since", since - ROUND_SECONDS)
    assert [take(redis, "bbbb"), take(redis, "bbbb")] == ["r-0", "r-2"]
    assert redis.exists(PASSED) == 0
    assert take(redis, "bbbb") == "r-5"


def test_a_clock_that_went_back_ends_no_wait_too_late(redis: Redis) -> None:
    put(redis, *["aaaa", "bbbb"] * 2)
    assert take(redis, "bbbb") == "r-1"
    redis.hset(PASSED, "since", int(redis.hget(PASSED, "since") or 0) + 3600)
    assert take(redis, "bbbb") == "r-0"


def test_what_was_handed_back_is_taken_at_once(redis: Redis) -> None:
    put(redis, *["aaaa", "bbbb"] * 4)
    assert take(redis) == "r-0"
    assert take(redis, "aaaa") == "r-2"
    redis.lpush(LIST, "r-2")
    redis.lpush(LIST, "r-0")
    assert [take(redis, "bbbb") for _ in range(3)] == ["r-0", "r-2", "r-1"]


FORGED: dict[str, Callable[[Redis], object]] = {
    "a huge key": lambda redis: redis.hset("rq:job:r-1", "prefix", "aaaa" * 2**20),
    "no key of ours": lambda redis: redis.hset("rq:job:r-1", "prefix", b"\xff\x00"),
    "a number": lambda redis: redis.hset("rq:job:r-1", "prefix", 7),
    "no hash": lambda redis: redis.set("rq:job:r-1", "x"),
    "no request": lambda redis: redis.delete("rq:job:r-1"),
    "no id": lambda redis: redis.lset(LIST, 1, b"\xff'] x"),
    "a head that is no hash": lambda redis: redis.set("rq:job:r-0", "x"),
    "a round of another type": lambda redis: redis.rpush(PASSED, "x"),
    "a round without numbers": lambda redis: redis.hset(PASSED, mapping={"left": "x", "passed": "", "since": "[]"}),
    "a round of nan": lambda redis: redis.hset(PASSED, mapping={"left": "nan", "passed": "nan", "since": "nan"}),
    "a round that is too long": lambda redis: redis.hset(PASSED, mapping={"left": 10**9, "passed": 9, "since": 1}),
    "a round of the past": lambda redis: redis.hset(PASSED, mapping={"left": 9, "passed": 9, "since": -(10**9)}),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_whatever_is_forged_everything_is_taken_once(redis: Redis, forge: Callable[[Redis], object]) -> None:
    put(redis, *["aaaa", "bbbb"] * 4)
    forge(redis)
    listed = sorted(cast(list[bytes], redis.lrange(LIST, 0, -1)))
    for _ in range(8):
        redis.eval(TAKE, 3, LIST, INTERMEDIATE, PASSED, "bbbb", "64", "600")
    assert sorted(cast(list[bytes], redis.lrange(INTERMEDIATE, 0, -1))) == listed
    assert redis.llen(LIST) == 0
    assert redis.exists(PASSED) == 0


def test_what_is_gone_is_not_brought_back(redis: Redis) -> None:
    put(redis, "aaaa")
    redis.delete("rq:job:r-0")
    assert take(redis, "aaaa") == "r-0"
    assert redis.exists("rq:job:r-0") == 0


@dataclass
class Rule:
    """The rule of the module's docstring, without Redis: what is to be taken next. passed: those who were passed over
    and wait. left, late: of the round."""

    size: int
    kinds: dict[str, str] = field(default_factory=dict)
    returned: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    left: int = 0
    late: bool = False

    def next(self, waiting: list[str], own: str) -> str:
        if waiting[0] in self.returned:
            return waiting[0]
        if not self.passed:
            self.left, self.late = self.size, False
        candidates = waiting[:1] if self.late else waiting[: self.left]
        chosen = max(candidates, key=lambda request_id: self._shared(own, self.kinds[request_id]))
        self.passed |= set(waiting[: waiting.index(chosen)])
        self.passed.discard(chosen)
        self.left -= 1
        return chosen

    @staticmethod
    def _shared(one: str, other: str) -> int:
        rungs = [(one[at : at + 4], other[at : at + 4]) for at in range(0, min(len(one), len(other)), 4)]
        return next((count for count, (mine, its) in enumerate(rungs) if mine != its), len(rungs))


WORKERS = 3
SOME_KINDS = st.lists(st.sampled_from(KINDS), min_size=4, max_size=16)
TAKES = st.lists(st.integers(0, WORKERS - 1), min_size=1, max_size=4).map(lambda workers: ("take", workers))
STEPS = st.lists(
    st.one_of(
        TAKES,
        TAKES,
        SOME_KINDS.map(lambda kinds: ("put", kinds)),
        st.tuples(st.just("hand back"), st.integers(0, WORKERS - 1)),
        st.tuples(st.just("cancel"), st.integers(0, 8)),
        st.just(("wait", 0)),
        st.just(("wait", 0)),
    ),
    min_size=12,
    max_size=24,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=SOME_KINDS, steps=STEPS, size=st.integers(2, 8))
def test_all_are_served_none_is_passed_over_too_often_and_equals_stay_in_order(
    redis: Redis, first: list[str], steps: list[tuple[str, Any]], size: int
) -> None:
    redis.flushdb()
    rule = Rule(size)
    rule.kinds |= dict(zip(put(redis, *first), first, strict=True))
    running: dict[int, list[str]] = {worker: [] for worker in range(WORKERS)}
    own = dict.fromkeys(running, "")
    times_passed: dict[str, int] = {}
    order: list[str] = []
    cancelled: set[str] = set()
    due: set[str] = set()  # passed over before the time of their round was over
    for step, value in [*steps, ("take", [0] * 300)]:
        if step == "put":
            rule.kinds |= dict(zip(put(redis, *value, first=len(rule.kinds)), value, strict=True))
        elif step == "hand back" and running[value]:
            back = running[value].pop()
            redis.lrem(INTERMEDIATE, 1, back)
            redis.lpush(LIST, back)
            rule.returned.add(back)
        elif step == "cancel" and value < len(listed := waiting(redis)):
            redis.lrem(LIST, 1, listed[value])
            cancelled.add(listed[value])
        elif step == "wait" and redis.exists(PASSED):
            redis.hset(PASSED, "since", 1)
            rule.late = True
            due |= times_passed.keys() & set(waiting(redis))
        for worker in value if step == "take" else ():
            listed = waiting(redis)
            taken = take(redis, own[worker], size)
            if taken is None:
                assert listed == []
                break
            if not cancelled:
                assert taken == rule.next(listed, own[worker])
            assert due.isdisjoint(listed[: listed.index(taken)])
            for other in listed[: listed.index(taken)]:
                times_passed[other] = times_passed.get(other, 0) + 1
            own[worker] = rule.kinds[taken]
            running[worker].append(taken)
            order.append(taken)
    kept = [entry for worker in running.values() for entry in worker]
    assert sorted(kept) == sorted(rule.kinds.keys() - cancelled)
    assert sorted(entry.decode() for entry in redis.lrange(INTERMEDIATE, 0, -1)) == sorted(kept)
    assert max(times_passed.values(), default=0) <= size - 1
    for kind in KINDS:
        alike = [entry for entry in order if rule.kinds[entry] == kind and entry not in rule.returned]
        assert alike == sorted(alike, key=lambda entry: int(entry.removeprefix("r-")))
