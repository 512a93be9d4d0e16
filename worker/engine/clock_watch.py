"""Clock watch: whether passes still take as long as when their costs were measured.

Chips slow down on battery and when they are hot, and another program may share them. The same one-node pass is timed
again now and then, over the same short prefix: the passes of a request depend on its context and cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable

from worker.engine.cost_measurement import TimePass, time_block

LOOK_SECONDS = 300.0
# Off by this factor, either way, in so many looks in a row.
FACTOR = 1.25
STRIKES = 2


class ClockWatch:
    """one_node_ms: what a pass cost when it was measured, just now or in an earlier process. clock: in seconds."""

    def __init__(self, one_node_ms: float, clock: Callable[[], float]) -> None:
        self._one_node_ms, self._clock = one_node_ms, clock
        self._next_look = clock() + LOOK_SECONDS
        self._strikes = 0

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._next_look

    def has_moved(self, time_pass: TimePass) -> bool:
        """Look; True when the curve should be measured again."""
        now, _ = time_block(time_pass)
        off = max(now / self._one_node_ms, self._one_node_ms / now) > FACTOR
        self._strikes = self._strikes + 1 if off else 0
        self._next_look = self._clock() + LOOK_SECONDS
        return self._strikes >= STRIKES
