"""The clock watch: when passes count as slower or faster than they were measured."""

import itertools

import pytest
from toy_clock import ToyClock

from worker.engine.clock_watch import LOOK_SECONDS, ClockWatch
from worker.engine.cost_measurement import TimePass


def passes_of(milliseconds: float) -> TimePass:
    return lambda nodes: milliseconds if nodes == 1 else 1e9


def test_it_looks_when_some_time_has_passed() -> None:
    clock = ToyClock()
    watch = ClockWatch(50.0, clock)
    assert not watch.is_due
    clock.now += LOOK_SECONDS
    assert watch.is_due
    watch.has_moved(passes_of(50.0))
    assert not watch.is_due
    clock.now += LOOK_SECONDS
    assert watch.is_due


@pytest.mark.parametrize("milliseconds", [64.0, 39.0, 500.0, 5.0])
def test_a_clock_that_moved_is_believed_at_the_second_look(milliseconds: float) -> None:
    watch = ClockWatch(50.0, ToyClock())
    assert [watch.has_moved(passes_of(milliseconds)) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("milliseconds", [50.0, 62.0, 41.0])
def test_a_small_change_is_none(milliseconds: float) -> None:
    watch = ClockWatch(50.0, ToyClock())
    assert not any(watch.has_moved(passes_of(milliseconds)) for _ in range(5))


def test_a_passing_disturbance_is_forgotten() -> None:
    watch = ClockWatch(50.0, ToyClock())
    looks = [watch.has_moved(passes_of(milliseconds)) for milliseconds in (90.0, 50.0, 90.0, 50.0)]
    assert looks == [False] * 4


def test_one_slow_pass_in_a_look_does_not_count() -> None:
    watch = ClockWatch(50.0, ToyClock())
    times = itertools.cycle([50.0, 50.0, 200.0, 50.0, 50.0])
    assert not any(watch.has_moved(lambda _: next(times)) for _ in range(4))
