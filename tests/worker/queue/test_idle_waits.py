"""How long a worker waits that finds no request, or no Redis."""

from typing import cast

import pytest
from rq.exceptions import StopRequested

from tests.worker.queue.conftest import Station
from tests.worker.queue.test_upkeep import worker_of
from worker.job import GenerationJob
from worker.shutdown import Shutdown


class Counted(Shutdown):
    """Waits for nothing, writes down how long it should, and stops the worker after eight waits."""

    def __init__(self) -> None:
        super().__init__(grace_seconds=0)
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        if len(self.waits) == 8:
            self.request()
        return self.requested


def waits(station: Station) -> list[float]:
    shutdown = Counted()
    worker = worker_of(station, cast(GenerationJob, None), shutdown)
    with pytest.raises(StopRequested):
        worker.dequeue_job_and_maintain_ttl(None)
    return shutdown.waits


def test_idle_workers_do_not_ask_in_step(station: Station) -> None:
    idle = waits(station)
    assert all(0.375 <= wait <= 0.625 for wait in idle)
    assert len(set(idle)) == 8


def test_waits_for_a_redis_that_is_away_grow_are_bounded_and_differ(station: Station) -> None:
    shutdown = Counted()
    worker = worker_of(station, cast(GenerationJob, None), shutdown)
    station.kill_server()
    with pytest.raises(StopRequested):
        worker.dequeue_job_and_maintain_ttl(None)
    means = [1, 2, 4, 5, 5, 5, 5, 5]
    assert all(0.75 * mean <= wait <= 1.25 * mean for wait, mean in zip(shutdown.waits, means, strict=True))
    assert len(set(shutdown.waits[3:])) == 5
