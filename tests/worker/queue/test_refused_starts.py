"""What Redis refuses before or after the engine has a request: it waits again, and nobody has died of it."""

from pathlib import Path
from typing import Any

import pytest

from api.queue import attempts, deaths
from api.queue.leases import LeaseRegistry
from api.schemas import GenerationRequest
from tests.worker.queue.conftest import BATCH, Station
from tests.worker.queue.test_upkeep import worker_of
from tests.worker.scripted_engine import ScriptedEngine, scripted_text
from worker.job import GenerationJob
from worker.outbox import Outbox
from worker.shutdown import Shutdown

pytestmark = pytest.mark.faults

REQUEST = f"{BATCH}-0"
MOST_WAITS = 30
"""A request that is not taken again fails the test, and does not hang it."""


class Refusals(Shutdown):
    """A server that takes no writes from `refuse` until the worker has waited `waits` times."""

    def __init__(self, station: Station, waits: int) -> None:
        super().__init__(grace_seconds=60)
        self._station = station
        self._left = waits
        self.refused = 0

    def refuse(self) -> None:
        if not self.refused:
            self.refused += 1
            self._station.redis.config_set("min-replicas-to-write", 1)

    def wait(self, seconds: float) -> bool:
        self._left -= 1
        if self._left < -MOST_WAITS:
            self.request()
        elif self.refused and self._left < 0:
            self._station.redis.config_set("min-replicas-to-write", 0)
        return self.requested


def work(station: Station, folder: Path, refusals: Refusals, prompt: str, engine: ScriptedEngine) -> None:
    """Until the request was answered once."""
    station.enqueue(prompt)
    upkeep = engine.upkeep

    def stop_after_an_answer() -> None:
        upkeep()
        if station.finished():
            refusals.request()

    engine.upkeep = stop_after_an_answer  # type: ignore[method-assign]
    outbox = Outbox(folder / "outbox-w.sqlite3")
    worker_of(station, GenerationJob(engine, station.redis, outbox, "w", lambda: True), refusals).work(
        logging_level="WARNING"
    )
    outbox.close()


def assert_nobody_died(station: Station) -> None:
    assert attempts.lost_workers(station.redis, REQUEST) == ()
    assert deaths.rows(station.redis, ["h"])["h"].deaths == ()
    assert station.queue.set_aside(station.model) == []
    assert station.redis.zcard(f"rq:wip:{station.model}:normal") == 0
    assert station.redis.llen(f"rq:queue:{station.model}:normal:intermediate") == 0
    assert station.redis.llen(f"rq:queue:{station.model}:normal") == 0


@pytest.mark.parametrize("refused", ["count", "word of the start"])
@pytest.mark.parametrize("waits", [0, 2])
def test_a_request_whose_start_is_refused_waits_again_and_no_attempt_is_used_up(
    station: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, waits: int
) -> None:
    refusals = Refusals(station, waits)
    owner, name = (attempts, "begin") if refused == "count" else (LeaseRegistry, "tell_start")
    original = getattr(owner, name)

    def refuse_first(*arguments: Any) -> Any:
        refusals.refuse()
        return original(*arguments)

    monkeypatch.setattr(owner, name, refuse_first)
    retries = []
    engine = ScriptedEngine(on_start=lambda _: retries.append(station.redis.hget(f"rq:job:{REQUEST}", "retries_left")))
    work(station, tmp_path, refusals, "a prompt", engine)
    assert refusals.refused == 1
    assert [(event.kind, event.attempt) for event in station.pull()] == [("started", 1), ("finished", 1)]
    assert retries == [b"1"]
    assert_nobody_died(station)


def test_a_failed_attempt_whose_books_are_refused_is_tried_again(station: Station, tmp_path: Path) -> None:
    refusals = Refusals(station, waits=1)

    def start(request: GenerationRequest) -> None:
        if not refusals.refused:
            refusals.refuse()
            raise MemoryError

    work(station, tmp_path, refusals, "a prompt", ScriptedEngine(on_start=start))
    told = [(event.kind, event.attempt) for event in station.pull()]
    assert told == [("started", 1), ("requeued", 1), ("started", 2), ("finished", 2)]
    [event] = station.finished()
    assert event.result is not None
    assert event.result.text == scripted_text("a prompt", 4)
    assert_nobody_died(station)
