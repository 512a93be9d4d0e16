"""Times of works that take turns: what else a machine does falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def median_seconds(works: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """Of each work, over `turns` rounds; a first round, in which kernels are compiled, does not count."""
    rounds = [[_seconds(work) for work in works] for _ in range(turns + 1)][1:]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
