"""The cost curve as a plot, by hand."""

import pytest

from cli.cost_plot import cost_plot
from cli.cost_view import NARROWEST, WIDEST
from worker.engine.cost_measurement import MEASURED_NODES


def test_a_curve_by_hand() -> None:
    # 17 columns for 1 to 5 nodes, four a node, and five rows for a cost of 1 to 3, two a pass. Three columns beyond
    # three nodes, for example, cost 1.5 + 3 / 8 * 1.5 = 2.06 and lie in the row of 2.
    assert cost_plot([(1, 1.0), (2, 1.5), (3, 1.5), (5, 3.0)], width=22, height=5).splitlines() == [
        "  3 ┤               ·●",
        "2.5 ┤             ··",
        "  2 ┤          ···",
        "1.5 ┤   ·●···●·",
        "  1 ┤●··",
        "    └┬───┬───┬───────┬",
        "     1   2   3       5",
    ]


def test_a_flat_curve_is_not_magnified() -> None:
    lines = cost_plot([(1, 1.0), (16, 1.04)], width=60, height=12).splitlines()
    assert lines[0] == "   2 ┤"
    assert lines[11].startswith("   1 ┤●···")
    assert lines[11].endswith("●")


@pytest.mark.parametrize(("most", "ticks"), [(6.2, "1 2 3 4 5 6"), (12.5, "1 2 4 6 8 10 12"), (40.0, "1 10 20 30 40")])
def test_ticks_are_round_numbers(most: float, ticks: str) -> None:
    lines = cost_plot([(1, 1.0), (8, most)], width=60).splitlines()
    assert [line.split("┤")[0].strip() for line in reversed(lines) if "┤" in line] == ticks.split()


@pytest.mark.parametrize("width", [NARROWEST, WIDEST])
@pytest.mark.parametrize("most", [2, 7, 16, 32])
def test_every_measured_count_has_its_mark_and_no_line_is_too_long(width: int, most: int) -> None:
    counts = sorted({*(nodes for nodes in MEASURED_NODES if nodes < most), most})
    *_, axis, numbers = lines = cost_plot([(nodes, 1 + nodes / 9) for nodes in counts], width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.count("●") for line in lines) == axis.count("┬") == len(counts)
    assert numbers.split()[0] == "1"
    assert set(numbers.split()) <= {str(nodes) for nodes in counts}
