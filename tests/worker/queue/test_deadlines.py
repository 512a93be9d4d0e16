"""A worker keeps the deadline that a queue entry carries, also where no recorder runs."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from api.schemas import GenerationRequest, GenerationResult, JobStats, RequestEvent
from tests.worker.queue.conftest import BATCH, Station, wait_until
from tests.worker.scripted_engine import ScriptedEngine
from worker.job import GenerationEngine, GenerationJob
from worker.outbox import Outbox
from worker.run import Run, StopReason


class DeafEngine(ScriptedEngine):
    """Never asks whether to stop: its last pass goes on until the deadline is over."""

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        assert request.expires_at is not None
        time.sleep(max(0.0, request.expires_at - time.time()))
        return super().generate(request, on_tokens=on_tokens)


def request(index: int, seconds: float, **fields: object) -> GenerationRequest:
    """Its deadline is so many seconds from now; the server of these tests has the same clock."""
    return GenerationRequest(request_id=f"{BATCH}-{index}", prompt="p", expires_at=time.time() + seconds, **fields)


def perform(station: Station, tmp_path: Path, engine: GenerationEngine, payload: object) -> tuple[Run, int]:
    """The run, and how many requests the worker has completed."""
    run = Run(f"{BATCH}-0", 60.0, lambda: False, tell_start=station.tell_start)
    outbox = Outbox(tmp_path / "outbox-w.sqlite3")
    job = GenerationJob(engine, station.redis, outbox, "w", lambda: False)
    job.perform(run, payload)
    outbox.close()
    return run, job.completed


def kinds(events: list[RequestEvent]) -> list[str]:
    return [event.kind for event in events]


def test_an_overdue_request_is_not_started(station: Station, tmp_path: Path) -> None:
    started: list[GenerationRequest] = []
    payload = request(0, -1).model_dump(mode="json")
    run, completed = perform(station, tmp_path, ScriptedEngine(on_start=started.append), payload)
    assert (started, run.stopped_by, completed) == ([], StopReason.EXPIRED, 0)
    [event] = station.pull()
    assert (event.kind, event.request_id, event.worker, event.attempt) == ("expired", f"{BATCH}-0", "w", 1)


def test_a_request_that_runs_is_stopped_at_its_deadline(station: Station, tmp_path: Path) -> None:
    payload = request(0, 1, max_tokens=1000).model_dump(mode="json")
    run, completed = perform(station, tmp_path, ScriptedEngine(seconds_per_token=0.01), payload)
    assert (run.stopped_by, completed) == (StopReason.EXPIRED, 0)
    assert 0 < run.tokens < 1000
    assert kinds(station.pull()) == ["started", "expired"]


def test_an_answer_that_came_to_its_end_counts(station: Station, tmp_path: Path) -> None:
    payload = request(0, 1, max_tokens=2).model_dump(mode="json")
    run, completed = perform(station, tmp_path, DeafEngine(), payload)
    assert (run.stopped_by, completed) == (None, 1)
    assert kinds(station.pull()) == ["started", "finished"]


@pytest.mark.parametrize("forged", ["soon", -1, [], {"at": 1}, True])
def test_a_forged_deadline_is_an_invalid_request(station: Station, tmp_path: Path, forged: object) -> None:
    payload = request(0, 60).model_dump(mode="json") | {"expires_at": forged}
    perform(station, tmp_path, ScriptedEngine(), payload)
    [event] = station.pull()
    assert event.result is not None
    assert event.result.error is not None
    assert event.result.error.code == "invalid_request"
    assert event.result.error.message.startswith("expires_at: ")


def test_a_worker_without_a_recorder_answers_overdue_requests_and_runs_the_others(station: Station) -> None:
    requests = [request(0, -1), request(1, 60), request(2, -1)]
    station.queue.enqueue(requests, model=station.model, priority="normal")
    station.start_worker()
    wait_until(lambda: sum(event.final for event in station.pull()) == 3, "the last word on each")
    assert [(event.request_id[-1], event.kind) for event in station.events if event.final] == [
        ("0", "expired"),
        ("1", "finished"),
        ("2", "expired"),
    ]
    assert [request_id for request_id, _ in station.starts()] == [f"{BATCH}-1"]
    wait_until(lambda: not station.queue.live([one.request_id for one in requests]), "the books")
    assert station.queue.set_aside(station.model) == []


def test_what_a_worker_found_overdue_is_answered_until_it_is_recorded(station: Station, tmp_path: Path) -> None:
    one = request(0, -1)
    station.queue.enqueue([one], model=station.model, priority="normal")
    perform(station, tmp_path, ScriptedEngine(), one.model_dump(mode="json"))
    assert station.queue.answered() == {one.request_id}
    assert station.queue.live([one.request_id]) == set()
    station.pull()
    assert station.queue.answered() == set()
