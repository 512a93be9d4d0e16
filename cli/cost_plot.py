"""The cost curve as a plot in text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

MEASURED, BETWEEN = "●", "·"
TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)
MOST_TICKS = 6

Point = tuple[int, float]
"""Nodes of a pass, and its cost in passes over one node."""


def cost_plot(points: Sequence[Point], width: int, height: int = 12) -> str:
    """Lines of at most `width` characters: nodes from left to right, the cost upwards from 1.

    points: two at least, the first of one node; no two of them may fall into one column.
    """
    top = max(2.0, *(cost for _, cost in points))
    labels = _labels(top, height)
    margin = max(map(len, labels)) + 2
    columns = width - margin
    last = points[-1][0]
    canvas = [[" "] * columns for _ in range(height)]
    for column in range(columns):
        nodes = 1 + column * (last - 1) / (columns - 1)
        canvas[_row(_cost(points, nodes), top, height)][column] = BETWEEN
    places = {round((nodes - 1) * (columns - 1) / (last - 1)): nodes for nodes, _ in points}
    for column, (_, cost) in zip(places, points, strict=True):
        canvas[_row(cost, top, height)][column] = MEASURED
    lines = [
        f"{label:>{margin - 2}} {'┤' if label else '│'}{''.join(row)}"
        for label, row in zip(labels, canvas, strict=True)
    ]
    axis = "".join("┬" if column in places else "─" for column in range(columns))
    lines = [line.rstrip() for line in reversed(lines)]
    return "\n".join([*lines, f"{'':{margin - 2}} └{axis}", f"{'':{margin}}{_numbers(places, columns)}"])


def _row(cost: float, top: float, height: int) -> int:
    return round((cost - 1) / (top - 1) * (height - 1))


def _labels(top: float, height: int) -> list[str]:
    """What stands beside each row, from the lowest: 1 and the multiples of a round number."""
    step = next(step for step in TICKS if (top - 1) / step <= MOST_TICKS or step == TICKS[-1])
    labels = [""] * height
    for count in range(int(top / step + 1e-9), 0, -1):
        if count * step > 1:
            labels[_row(count * step, top, height)] = f"{count * step:g}"
    labels[0] = "1"
    return labels


def _cost(points: Sequence[Point], nodes: float) -> float:
    """Linear between the points."""
    right = min(bisect_right([known for known, _ in points], nodes), len(points) - 1)
    (low, low_cost), (high, high_cost) = points[right - 1], points[right]
    return low_cost + (high_cost - low_cost) * (nodes - low) / (high - low)


def _numbers(places: Mapping[int, int], columns: int) -> str:
    """The node counts below their columns, as far as there is room."""
    line = ""
    for column, nodes in places.items():
        start = min(column, columns - len(str(nodes)))
        if start > len(line) or not line:
            line = f"{line:{start}}{nodes}"
    return line
