"""Measuring the cost curve: the warm-up, the order of the passes, and when it stops."""

import itertools
from collections.abc import Iterable, Iterator

import pytest

from worker.engine.cost_measurement import measure_cost_curve, warm_up


class ScriptedTimer:
    """Pass times per node count, one after the other; records the order of the calls."""

    def __init__(self, times: dict[int, Iterable[float]]) -> None:
        self.times: dict[int, Iterator[float]] = {nodes: iter(values) for nodes, values in times.items()}
        self.calls: list[int] = []

    def __call__(self, nodes: int) -> float:
        self.calls.append(nodes)
        return next(self.times[nodes])


# Warming up. A block is five passes; more, until 50 ms are over; fewer, when 400 ms are.


def test_a_steady_clock_is_warm_after_two_blocks() -> None:
    timer = ScriptedTimer({1: itertools.repeat(20.0)})
    assert warm_up(timer, 2000) == 0
    assert len(timer.calls) == 10


def test_a_rising_clock_is_waited_for() -> None:
    # 40, 30, 25, 24, 23.5 ms: the steps are 25 %, 17 %, 4 % and 2.1 %.
    blocks = [[milliseconds] * 5 for milliseconds in (40.0, 30.0, 25.0, 24.0, 23.5)]
    timer = ScriptedTimer({1: itertools.chain(*blocks)})
    assert warm_up(timer, 2000) == pytest.approx(1 - 23.5 / 24)
    assert len(timer.calls) == 25


def test_a_clock_that_never_settles_ends_the_warm_up_at_its_time_limit() -> None:
    timer = ScriptedTimer({1: itertools.cycle([10.0] * 5 + [20.0] * 5)})
    drift = warm_up(timer, 500)
    assert drift in (pytest.approx(1.0), pytest.approx(0.5))
    # Blocks of 50 and 100 ms until more than 500 ms are spent after the first one.
    assert len(timer.calls) == 5 * (1 + 7)


def test_one_slow_pass_does_not_look_like_a_drift() -> None:
    timer = ScriptedTimer({1: [20, 20, 90, 20, 20, 20, 20, 20, 20, 20]})
    assert warm_up(timer, 2000) == 0


def test_short_passes_are_repeated_until_the_clock_had_time_to_rise() -> None:
    timer = ScriptedTimer({1: itertools.repeat(1.0)})
    warm_up(timer, 2000)
    assert len(timer.calls) == 100


def test_slow_passes_make_short_blocks() -> None:
    timer = ScriptedTimer({1: itertools.repeat(150.0)})
    warm_up(timer, 2000)
    assert len(timer.calls) == 6


# Measuring.


def test_measuring_goes_round_robin_and_leaves_first_round_and_warm_up_out() -> None:
    first = 450
    timer = ScriptedTimer(
        {
            1: [first, *[10] * 10, 10, 11, 12, 10, 9],
            2: [first, 20, 20, 20, 21, 22],
            3: [first, 19, 19, 19, 19, 19],
            4: [first, 40, 41, 90, 42, 43],
        }
    )
    measured = measure_cost_curve(timer, 4, rounds=5)
    assert timer.calls == [1, 2, 3, 4, *[1] * 10, *[1, 2, 3, 4] * 5]
    assert measured.curve.nodes == (1, 2, 3, 4)
    assert measured.curve.milliseconds == pytest.approx((10, 19.5, 19.5, 42))
    assert measured.is_steady


def test_a_clock_that_was_not_steady_is_told() -> None:
    timer = ScriptedTimer({1: itertools.cycle([10.0] * 5 + [20.0] * 5)})
    measured = measure_cost_curve(timer, 1, time_limit_ms=400)
    assert not measured.is_steady
    assert measured.drift >= 0.5


def test_the_rounds_are_repeated_when_the_clock_moved_meanwhile() -> None:
    """A chip that gets hot: all passes take a quarter longer from the third round on."""
    cool, hot = [10.0, 20.0, 30.0], [12.5, 25.0, 37.5]
    timer = ScriptedTimer(
        {
            nodes: [first, *([first] * 10 if nodes == 1 else []), *[first] * 2, *[later] * 20]
            for nodes, first, later in zip((1, 2, 3), cool, hot, strict=True)
        }
    )
    measured = measure_cost_curve(timer, 3, rounds=5)
    assert timer.calls == [1, 2, 3, *[1] * 10, *[1, 2, 3] * 10]
    assert measured.curve.milliseconds == pytest.approx(hot)
    assert measured.is_steady


def test_a_clock_that_keeps_moving_is_told_and_ends_after_three_attempts() -> None:
    """Each round takes a tenth longer than the one before."""
    rising = {nodes: [nodes * 2.0, *([2.0] * 50 if nodes == 1 else [])] for nodes in (1, 2)}
    timer = ScriptedTimer(
        {nodes: [*before, *(nodes * 2.0 * 1.1**step for step in range(99))] for nodes, before in rising.items()}
    )
    measured = measure_cost_curve(timer, 2, rounds=4)
    assert len(timer.calls) == 2 + 50 + 3 * 4 * 2
    # The latter two of four rounds against the first two.
    assert measured.moved == pytest.approx(1.1**2 - 1)
    assert measured.drift == 0
    assert not measured.is_steady
    # The last attempt's: rounds eight to eleven.
    assert measured.curve.cost(1) == pytest.approx((2 * 1.1**9 + 2 * 1.1**10) / 2)


def test_a_third_attempt_is_made_only_while_there_is_time() -> None:
    rising = {nodes: [nodes * 100.0, *([100.0] * 8 if nodes == 1 else [])] for nodes in (1, 2)}
    timer = ScriptedTimer(
        {nodes: [*before, *(nodes * 100.0 * 1.1**step for step in range(99))] for nodes, before in rising.items()}
    )
    # Four rounds take 300 ms * (1 + 1.1 + 1.21 + 1.331) = 1.4 s, the next four 2 s.
    measure_cost_curve(timer, 2, rounds=4, time_limit_ms=3000)
    assert len(timer.calls) == 2 + 8 + 2 * 4 * 2


def test_one_hiccup_is_no_clock_that_moved() -> None:
    timer = ScriptedTimer({nodes: [10.0 * nodes, *[10.0 * nodes] * 40] for nodes in (1, 2, 3)})
    times = [10.0, *[10.0] * 10, 90.0, *[10.0] * 40]
    timer.times[1] = iter(times)
    measured = measure_cost_curve(timer, 3, rounds=5)
    assert len(timer.calls) == 3 + 10 + 3 * 5
    assert measured.is_steady


def test_a_slow_first_round_leaves_powers_of_two_and_the_largest_tree() -> None:
    timer = ScriptedTimer({nodes: [500.0, *[100.0 * nodes] * 20] for nodes in (1, 2, 3, 4, 5, 6)})
    measured = measure_cost_curve(timer, 6, rounds=2, time_limit_ms=8000)
    # Four passes make a block of 400 ms.
    assert timer.calls == [1, 2, 3, 4, 5, 6, *[1] * 8, *[1, 2, 4, 6] * 2]
    assert measured.curve.nodes == (1, 2, 4, 6)
    assert measured.curve.milliseconds == (100, 200, 400, 600)


def test_measuring_stops_early_when_passes_are_slow() -> None:
    timer = ScriptedTimer({1: [1, *[3000] * 19], 2: [1, *[5000] * 9]})
    measured = measure_cost_curve(timer, 2, rounds=5, time_limit_ms=8000)
    # A first round, two blocks of one pass as warm-up, then two rounds at least.
    assert timer.calls == [1, 2, 1, 1, 1, 2, 1, 2]
    assert measured.curve.milliseconds == pytest.approx((3000, 5000))


@pytest.mark.parametrize(
    ("max_nodes", "counts"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (7, (1, 2, 3, 4, 5, 6, 7)),
        (16, (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)),
        (20, (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 20)),
    ],
)
def test_measured_counts_end_at_the_largest_tree(max_nodes: int, counts: tuple[int, ...]) -> None:
    curve = measure_cost_curve(lambda nodes: float(nodes), max_nodes, rounds=1).curve
    assert curve.nodes == counts
    assert curve.milliseconds == tuple(float(n) for n in counts)
