"""When a request has to end before its text does."""

import pytest
from toy_clock import ToyClock

from worker.engine.interruption import Interruption


def test_the_time_runs_from_the_start_and_ends_with_its_last_second() -> None:
    clock = ToyClock(50.0)
    interruption = Interruption(lambda: False, 3.0, clock)
    for now, reason in [(50.0, None), (52.999, None), (53.0, "time_limit"), (51.0, "time_limit")]:
        clock.now = now
        assert interruption.ask() == interruption.reason == reason


def test_without_a_limit_time_does_not_matter() -> None:
    clock = ToyClock()
    interruption = Interruption(lambda: False, None, clock)
    clock.now += 1e9
    assert interruption.ask() is None


@pytest.mark.parametrize(("cancelled_at", "reason"), [(1, "cancelled"), (3, "cancelled"), (4, "time_limit")])
def test_the_first_reason_stays_and_a_cancel_comes_before_a_limit(cancelled_at: int, reason: str) -> None:
    clock = ToyClock(0.0)
    interruption = Interruption(lambda: clock.now >= cancelled_at, 3.0, clock)
    answers = []
    for clock.now in range(7):
        answers.append(interruption.ask())
    first = min(cancelled_at, 3)
    assert answers == [None] * first + [reason] * (7 - first)
