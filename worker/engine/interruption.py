"""Interruption: whether, and why, a request has to end before its text does."""

import math
from collections.abc import Callable
from typing import Literal

Interrupt = Literal["cancelled", "time_limit"]


class Interruption:
    """Asked once a pass, and between the chunks of a prefill. The first reason stays.

    seconds: wall time from now on after which the request is out of time; None = no limit. clock: in seconds.
    """

    def __init__(self, should_stop: Callable[[], bool], seconds: float | None, clock: Callable[[], float]) -> None:
        self._should_stop, self._clock = should_stop, clock
        self._deadline = math.inf if seconds is None else clock() + seconds
        self.reason: Interrupt | None = None

    def ask(self) -> Interrupt | None:
        """The reason to end here; None = go on."""
        if self.reason is None:
            if self._should_stop():
                self.reason = "cancelled"
            elif self._clock() >= self._deadline:
                self.reason = "time_limit"
        return self.reason
