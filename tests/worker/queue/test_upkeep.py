"""Upkeep: what an engine does between two requests keeps nobody waiting and stops nobody."""

from collections.abc import Callable
from pathlib import Path

import pytest

from api.schemas import WorkerInfo
from tests.worker.queue.conftest import BATCH, Station
from tests.worker.scripted_engine import ScriptedEngine
from worker.duty import Duty
from worker.job import GenerationJob
from worker.outbox import Outbox
from worker.pulse import Pulse
from worker.rq_worker import GenerationWorker
from worker.shutdown import Shutdown

FIRST, SECOND = f"{BATCH}-0", f"{BATCH}-1"
LEASES = "rq:wip:scripted:normal"


def work_until_the_second_has_started(station: Station, folder: Path, on_upkeep: Callable[[], None]) -> None:
    shutdown = Shutdown(grace_seconds=60)
    engine = ScriptedEngine(
        on_start=lambda request: shutdown.request() if request.request_id == SECOND else None, on_upkeep=on_upkeep
    )
    outbox = Outbox(folder / "outbox-w.sqlite3")
    worker = worker_of(station, GenerationJob(engine, station.redis, outbox, "w", lambda: False), shutdown)
    worker.work(logging_level="WARNING")
    outbox.close()


def worker_of(station: Station, job: GenerationJob, shutdown: Shutdown) -> GenerationWorker:
    """In this process, without its pulse."""
    info = WorkerInfo(
        name="w", model="m", state="idle", host="h", pid=1, chip="", drafter="", verification="", seen_at=0
    )
    duty = Duty("w", "h", 3, shutdown)
    duty.look(station.redis)
    worker = GenerationWorker(
        station.model,
        name="w",
        connection=station.redis,
        settings=station.settings(lease_seconds=60, heartbeat_seconds=10),
        job=job,
        pulse=Pulse(station.redis, info, duty, 0.1),
        shutdown=shutdown,
        patience_seconds=0,
    )
    worker.subscribe = lambda: None  # type: ignore[method-assign] # leaving it takes RQ up to a second
    return worker


def test_upkeep_comes_when_the_result_is_out_and_not_before_a_stop(station: Station, tmp_path: Path) -> None:
    seen: list[tuple[list[str], int]] = []

    def on_upkeep() -> None:
        finished = [event.request_id for event in station.finished()]
        seen.append((finished, station.redis.zcard(LEASES)))  # type: ignore[arg-type]

    station.enqueue("one", "two")
    work_until_the_second_has_started(station, tmp_path, on_upkeep)
    # After the second request the worker had been asked to stop.
    assert seen == [([FIRST], 0)]
    assert [event.request_id for event in station.finished()] == [FIRST, SECOND]


def test_upkeep_that_fails_stops_nobody(station: Station, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def on_upkeep() -> None:
        raise OSError("no space left for " + "a secret".upper())

    station.enqueue("one", "two")
    work_until_the_second_has_started(station, tmp_path, on_upkeep)
    assert [event.request_id for event in station.finished()] == [FIRST, SECOND]
    assert "the engine's upkeep failed: OSError" in caplog.text
    assert "on_upkeep" in caplog.text
    assert "A SECRET" not in caplog.text


def test_the_engine_is_closed_when_the_worker_stops(station: Station) -> None:
    worker = station.start_worker()
    station.enqueue("one")
    station.wait_for_results(1)
    closed = station.engine_log.with_suffix(".closed")
    assert not closed.exists()
    worker.terminate()
    assert worker.wait(20) == 0
    assert closed.exists()
