"""Which rows go to a kernel follows from what passes with and without it took."""

import pytest

from worker.engine.linears import ALL_ROWS, NO_ROWS
from worker.engine.product_gain import rows_that_gain


class Machine:
    """Passes take what the tables say, and ten times as long when they are compiled."""

    def __init__(self, ours: dict[int, float], without: dict[int, float]) -> None:
        self.times = {True: ours, False: without}
        self.compiled: set[tuple[int, bool]] = set()
        self.rows = ALL_ROWS
        self.passes = 0

    def set_rows(self, rows: range) -> None:
        self.rows = rows

    def time_pass(self, nodes: int) -> float:
        self.passes += 1
        kernel = nodes in self.rows
        first = (nodes, kernel) not in self.compiled
        self.compiled.add((nodes, kernel))
        return self.times[kernel][nodes] * (10 if first else 1)


STOCK = {1: 10.0, 2: 14.0, 4: 27.0, 8: 24.0, 16: 35.0, 32: 65.0}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({1: 10.0, 2: 10.0, 4: 10.0, 8: 10.5, 16: 11.0, 32: 13.0}, ALL_ROWS),
        ({1: 10.1, 2: 10.0, 4: 10.0, 8: 10.5, 16: 11.0, 32: 13.0}, ALL_ROWS),  # 1 % is noise
        ({1: 13.0, 2: 13.0, 4: 14.0, 8: 15.0, 16: 19.0, 32: 40.0}, range(2, 33)),
        ({1: 13.0, 2: 15.0, 4: 20.0, 8: 20.0, 16: 36.0, 32: 60.0}, range(4, 16)),
        ({1: 13.0, 2: 15.0, 4: 28.0, 8: 25.0, 16: 36.0, 32: 66.0}, NO_ROWS),
    ],
)
def test_the_rows_for_which_nothing_is_lost(ours: dict[int, float], expected: range) -> None:
    machine = Machine(ours, STOCK)
    assert rows_that_gain(machine.time_pass, machine.set_rows, 32) == expected


def test_beyond_the_largest_tree_the_last_count_speaks_for_all() -> None:
    machine = Machine({1: 12.0, 2: 11.0, 4: 11.0}, STOCK)
    assert rows_that_gain(machine.time_pass, machine.set_rows, 4) == range(2, 33)
    machine = Machine({1: 12.0}, STOCK)
    assert rows_that_gain(machine.time_pass, machine.set_rows, 1) == NO_ROWS


def test_a_slow_machine_measures_two_rounds() -> None:
    machine = Machine({1: 900.0, 2: 900.0}, {1: 1000.0, 2: 1500.0})
    assert rows_that_gain(machine.time_pass, machine.set_rows, 2, time_limit_ms=1000) == ALL_ROWS
    assert machine.passes == 3 * 2 * 2
