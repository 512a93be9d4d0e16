"""For which numbers of rows a kernel's products make passes faster than MLX's own, measured in whole passes.

A kernel that reads weights once for 16 rows need not be the faster one for a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from kernels.qmm import MOST_ROWS
from worker.engine.cost_measurement import TimePass
from worker.engine.linears import ALL_ROWS, NO_ROWS

NODES = (1, 2, 4, 8, 16, 32)
NOISE = 0.02


def rows_that_gain(
    time_pass: TimePass,
    set_rows: Callable[[range], None],
    max_nodes: int,
    *,
    rounds: int = 5,
    time_limit_ms: float = 8000,
) -> range:
    """The numbers of rows that are best left to the kernel; those not measured go with the next smaller one.

    set_rows: what the kernel multiplies from then on. The first round, which compiles kernels, does not count.
    Measuring stops early, after two rounds at least, when `time_limit_ms` are spent.
    """
    counts = [n for n in NODES if n <= max_nodes]
    samples: dict[int, tuple[list[float], list[float]]] = {n: ([], []) for n in counts}
    spent = 0.0
    for number in range(rounds + 1):
        if number > 2 and spent > time_limit_ms:
            break
        for n in counts:
            for rows, times in zip((ALL_ROWS, NO_ROWS), samples[n], strict=True):
                set_rows(rows)
                times.append(time_pass(n))
                spent += times[-1] if number else 0
    return _best({n: median(without[1:]) / median(ours[1:]) for n, (ours, without) in samples.items()})


def _best(gains: Mapping[int, float]) -> range:
    """The neighbours of the largest gain at which nothing is lost. gains: by number of rows, above 1 when faster."""
    counts: Sequence[int] = sorted(gains)
    first = last = max(range(len(counts)), key=lambda place: gains[counts[place]])
    if gains[counts[first]] <= 1:
        return NO_ROWS
    while first > 0 and gains[counts[first - 1]] >= 1 - NOISE:
        first -= 1
    while last < len(counts) - 1 and gains[counts[last + 1]] >= 1 - NOISE:
        last += 1
    return range(counts[first], counts[last + 1] if last < len(counts) - 1 else MOST_ROWS + 1)
