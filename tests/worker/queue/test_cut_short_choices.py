"""A request for several choices that is stopped within a later one has not been answered."""

from collections.abc import Callable
from pathlib import Path

import pytest

from api.schemas import Choice, GenerationRequest, GenerationResult, JobStats, RequestEvent
from tests.worker.queue.conftest import BATCH, Station
from tests.worker.scripted_engine import ScriptedDescription
from worker.job import GenerationJob
from worker.outbox import Outbox
from worker.run import Run, StopReason

REQUEST = GenerationRequest(request_id=f"{BATCH}-0", prompt="p", n=3)


class StoppedEngine:
    """Writes one choice, and is stopped within the second."""

    description = ScriptedDescription()

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        self.stop()
        assert should_stop is not None
        assert should_stop()
        cut_short = Choice(text="hal", finish_reason="cancelled")
        result = GenerationResult(
            request_id=request.request_id, text="whole", finish_reason="stop", further_choices=[cut_short]
        )
        return result, JobStats(wall_ms=1.0)


def events_after(station: Station, tmp_path: Path, reason: StopReason, ours: bool = True) -> list[RequestEvent]:
    """ours: whether the request still is when the engine has been stopped."""

    def still_ours() -> bool:
        return ours or run.stopped_by is None

    run = Run(REQUEST.request_id, 60.0, lambda: False, tell_start=station.tell_start, still_ours=still_ours)
    outbox = Outbox(tmp_path / "outbox-w.sqlite3")
    job = GenerationJob(StoppedEngine(lambda: run.stop(reason)), station.redis, outbox, "w", lambda: False)
    job.perform(run, REQUEST.model_dump(mode="json"))
    outbox.close()
    assert run.stopped_by is reason
    assert job.completed == 0
    return station.pull()


@pytest.mark.parametrize("reason", [StopReason.HAND_BACK, StopReason.LEASE_LOST])
def test_it_is_answered_elsewhere_and_nothing_is_published_here(
    station: Station, tmp_path: Path, reason: StopReason
) -> None:
    assert [event.kind for event in events_after(station, tmp_path, reason)] == ["started"]


def test_a_cancelled_one_comes_with_the_choices_it_had(station: Station, tmp_path: Path) -> None:
    _, event = events_after(station, tmp_path, StopReason.CANCELLED)
    assert event.result is not None
    assert event.result.cancelled
    assert [choice.text for choice in event.result.choices] == ["whole", "hal"]


def test_an_overdue_one_is_an_error(station: Station, tmp_path: Path) -> None:
    _, event = events_after(station, tmp_path, StopReason.DEADLINE)
    assert event.result is not None
    assert event.result.error is not None
    assert event.result.error.code == "request_timeout"
    assert event.result.further_choices == []


def test_an_overdue_one_that_runs_elsewhere_by_now_says_nothing(station: Station, tmp_path: Path) -> None:
    events = events_after(station, tmp_path, StopReason.DEADLINE, ours=False)
    assert [event.kind for event in events] == ["started"]
