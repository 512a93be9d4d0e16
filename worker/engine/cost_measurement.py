"""Measuring c(n): what a verification pass over n nodes costs on this machine.

Warm up until the clock is steady, then go round all node counts, so that a clock that drifts all the same reaches every
count alike. If it moved between the first rounds and the last ones, the rounds are repeated: the curve is of now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from worker.engine.budget import CostCurve

TimePass = Callable[[int], float]
"""Runs one pass over so many nodes; returns its milliseconds."""

# Kernels work in tiles of 8, 16 and 32 rows: the counts just beyond those show the step between them.
MEASURED_NODES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
STEADY_DRIFT = 0.03
# Of single rounds, which are noisier than blocks.
MOVED = 0.1
ATTEMPTS = 3
# A block of the warm-up: five passes, fewer of slow ones, and more of those that are over before a clock can rise.
BLOCK_PASSES = 5
SHORTEST_BLOCK_MS, LONGEST_BLOCK_MS = 50.0, 400.0


@dataclass(frozen=True)
class Measurement:
    """drift: by how much the one-node time still changed when the warm-up ended, as a share; moved: by how much passes
    changed from the first rounds to the last."""

    curve: CostCurve
    drift: float
    moved: float

    @property
    def is_steady(self) -> bool:
        return self.drift < STEADY_DRIFT and self.moved < MOVED


def measure_cost_curve(
    time_pass: TimePass, max_nodes: int, *, rounds: int = 5, time_limit_ms: float = 8000
) -> Measurement:
    """c(n) for 1 to `max_nodes` nodes: medians of `rounds` rounds, made monotone.

    The first round, which compiles kernels, does not count. Measuring stops early, after two rounds at least, when
    `time_limit_ms` are spent; the warm-up takes a quarter of that at most, and a machine whose first round took as long
    is so slow that only powers of two are measured. The rounds are repeated once when the clock moved meanwhile, and
    once more if there is time left.
    """
    counts = sorted({*(n for n in MEASURED_NODES if n < max_nodes), max_nodes})
    if sum(time_pass(n) for n in counts) > time_limit_ms / 4:
        counts = [n for n in counts if n & (n - 1) == 0 or n == max_nodes]
    drift = warm_up(time_pass, time_limit_ms / 4)
    spent = 0.0
    for attempt in range(ATTEMPTS):
        samples = _rounds(time_pass, counts, rounds, time_limit_ms)
        spent += sum(map(sum, samples.values()))
        moved = _moved(samples)
        if moved < MOVED or (attempt and spent > time_limit_ms):
            break
    return Measurement(CostCurve.fit(samples), drift, moved)


def _rounds(time_pass: TimePass, counts: Sequence[int], rounds: int, time_limit_ms: float) -> dict[int, list[float]]:
    """Milliseconds by node count, one of each round."""
    samples: dict[int, list[float]] = {n: [] for n in counts}
    spent = 0.0
    for number in range(rounds):
        if number >= 2 and spent > time_limit_ms:
            break
        for n in counts:
            samples[n].append(time_pass(n))
            spent += samples[n][-1]
    return samples


def _moved(samples: Mapping[int, Sequence[float]]) -> float:
    """By how much the latter half of the rounds differs from the first half, as a share, by the typical node count."""
    half = max(1, len(next(iter(samples.values()))) // 2)
    return abs(median(sum(times[-half:]) / sum(times[:half]) for times in samples.values()) - 1)


def warm_up(time_pass: TimePass, time_limit_ms: float) -> float:
    """Run one-node passes until two blocks of them in a row take as long; returns by how much the last two differ.

    Ends by itself when `time_limit_ms` are spent, whatever the drift is then.
    """
    before, spent = time_block(time_pass)
    while True:
        now, more = time_block(time_pass)
        drift, before, spent = abs(now / before - 1), now, spent + more
        if drift < STEADY_DRIFT or spent > time_limit_ms:
            return drift


def time_block(time_pass: TimePass) -> tuple[float, float]:
    """Median and sum of the milliseconds of a block of one-node passes."""
    times: list[float] = []
    while sum(times) < (SHORTEST_BLOCK_MS if len(times) >= BLOCK_PASSES else LONGEST_BLOCK_MS):
        times.append(time_pass(1))
    return median(times), sum(times)
