"""Stopwatch: the phases of a generation, so that they add up to the wall time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from api.schemas import Phases

Phase = Literal["prefill", "draft", "verify", "sample", "commit"]


class Stopwatch:
    """Times on the monotonic clock, in milliseconds. Phases do not nest."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._phases: dict[Phase, float] = {}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = (time.perf_counter() - begun) * 1000
            self._phases[name] = self._phases.get(name, 0.0) + spent

    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self._start) * 1000

    def spent_ms(self, name: Phase) -> float:
        return self._phases.get(name, 0.0)

    def phases(self, wall_ms: float) -> Phases:
        """The phases; `other` is what remains of `wall_ms` (detokenisation, bookkeeping)."""
        named = dict(self._phases)
        return Phases(**named, other=max(0.0, wall_ms - sum(named.values())))
