"""Deadlines on the way into Redis: never early, and late by no more than the quickest answer of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from api.queue import deadlines
from api.queue.deadlines import on_server_clock, seconds_left
from api.schemas import GenerationRequest

AHEAD = -7.0


class Machines:
    """Two clocks, one of them a server's, which takes long to tell it: half of the time before it looks at it."""

    def __init__(self, delays: Sequence[float]) -> None:
        self.here = 5000.0
        self._delays = list(delays)
        self.asked = 0

    def time(self) -> tuple[int, int]:
        """Of the server."""
        delay = self._delays[self.asked]
        self.asked += 1
        self.here += delay / 2
        there = self.here + AHEAD
        self.here += delay / 2
        return int(there), round(there % 1 * 1e6)

    def read(self) -> float:
        """Of this machine."""
        return self.here


def request(expires_at: float | None) -> GenerationRequest:
    return GenerationRequest(request_id="batch_1-0", model="m", prompt="One.", expires_at=expires_at)


@pytest.mark.parametrize(
    ("delays", "asked", "late"),
    [
        ([0.0], 1, 0.0),
        ([0.04], 1, 0.02),
        ([1.0, 0.02], 2, 0.01),
        ([1.0, 2.0, 0.0], 3, 0.0),
        ([1.0, 0.5, 3.0, 0.0], 3, 0.25),
    ],
)
def test_the_quickest_of_up_to_three_answers_counts(
    delays: list[float], asked: int, late: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines: Any = Machines(delays)
    for clock in ("time", "monotonic"):
        monkeypatch.setattr(deadlines.time, clock, machines.read)
    (moved,) = on_server_clock(machines, [request(6000.0)])
    assert moved.expires_at == pytest.approx(6000.0 + AHEAD + late, abs=1e-5)
    assert machines.asked == asked


def test_what_has_no_deadline_asks_nobody() -> None:
    machines: Any = Machines([])
    assert on_server_clock(machines, [request(None)]) == [request(None)]


def test_what_is_left_is_by_the_servers_clock() -> None:
    machines: Any = Machines([0.0])
    assert seconds_left(machines, 5000.0 + AHEAD + 3.0) == pytest.approx(3.0)
