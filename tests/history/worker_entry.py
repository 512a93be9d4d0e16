"""A worker process that can be killed at any point of a request's way, with a disk that can be full.

Arguments: a JSON object of settings, one of the station (control, journals, slot, name, seconds_per_token), one of
arguments of `serve`. The points are those of schedule.PHASES; each is marked right after the step that it names.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rq.executions import Execution
from rq.job import Job

import worker.outbox
from api.queue.leases import LeaseRegistry
from api.schemas import GenerationRequest, GenerationResult, JobStats
from api.settings import load_settings
from tests.history.control import Journal, Trap, full_disk
from tests.worker.scripted_engine import ScriptedEngine
from worker.job import GenerationJob
from worker.outbox import Outbox
from worker.process import serve
from worker.rq_worker import GenerationWorker

DEADLY = "die"
PROMPT_SECONDS = 0.5
"""For an answer of the server on a busy machine."""


class JournalingEngine(ScriptedEngine):
    """Writes down the start and the end of every generation; a prompt that starts with DEADLY kills the process."""

    def __init__(self, journal: Journal, trap: Trap, seconds_per_token: float) -> None:
        super().__init__(seconds_per_token=seconds_per_token)
        self._journal, self._trap = journal, trap

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        self._journal.note("start", request.request_id)
        if (request.prompt or "").startswith(DEADLY):
            self._trap.spring("poison", request.request_id)

        def on_tokens_too(text: str, tokens: int) -> None:
            self._trap.passes("generating", request.request_id)
            if on_tokens is not None:
                on_tokens(text, tokens)

        result, stats = super().generate(request, on_tokens=on_tokens_too, should_stop=should_stop)
        if not result.cancelled:
            self._journal.note("end", request.request_id)
        return result, stats


def mark(owner: Any, name: str, phase: str, trap: Trap, request_of: Callable[..., str | None]) -> None:
    """Let `owner.name` pass the trap after each call; request_of: from what it returned and took, the request's id."""
    original = getattr(owner, name)

    def marked(*arguments: Any, **named: Any) -> Any:
        answer = original(*arguments, **named)
        request_id = request_of(answer, *arguments)
        if request_id is not None:
            trap.passes(phase, request_id)
        return answer

    setattr(owner, name, marked)


def note_questions(name: str, journal: Journal) -> None:
    """Let each call of the method of a lease registry be noted with the time from which the server can have answered.

    That of a slow call, which may have been sent again, is taken to be PROMPT_SECONDS before its answer came.
    """
    original = getattr(LeaseRegistry, name)

    def noted(registry: LeaseRegistry, execution: Execution, job: Job, *others: Any) -> bool:
        asked_at = time.time()
        wanted = bool(original(registry, execution, job, *others))
        journal.note("asks", job.id, at=max(asked_at, time.time() - PROMPT_SECONDS))
        return wanted

    setattr(LeaseRegistry, name, noted)


def set_traps(trap: Trap) -> None:
    mark(GenerationWorker, "_look", "dequeued", trap, lambda found, _: found[0].id if found else None)
    mark(GenerationWorker, "prepare_execution", "leased", trap, lambda _, worker, job: job.id)
    mark(GenerationWorker, "prepare_job_execution", "started", trap, lambda _, worker, job, *rest: job.id)
    mark(Outbox, "store", "stored", trap, lambda _, outbox, event: event.request_id)
    mark(worker.outbox, "publish_result", "published", trap, lambda _, connection, event: event.request_id)
    mark(GenerationJob, "perform", "unbooked", trap, lambda _, job, run, *rest: run.request_id)


def fill_disk_at_will(switch: Path) -> None:
    store = Outbox.store

    def store_on_a_disk_that_may_be_full(self: Outbox, *arguments: Any) -> None:
        with full_disk(switch):
            store(self, *arguments)

    Outbox.store = store_on_a_disk_that_may_be_full  # type: ignore[method-assign]


def main() -> None:
    settings_text, station_text, arguments_text = sys.argv[1:]
    station = json.loads(station_text)
    control, name = Path(station["control"]), station["name"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    journal = Journal(Path(station["journals"]) / f"{name}.jsonl", name)
    trap = Trap(control / f"kill-{station['slot']}", journal)
    fill_disk_at_will(control / "outbox-full")
    set_traps(trap)
    for question in ("tell_start", "is_wanted"):
        note_questions(question, journal)
    engine = JournalingEngine(journal, trap, station["seconds_per_token"])
    serve(load_settings(**json.loads(settings_text)), lambda: engine, name=name, **json.loads(arguments_text))


if __name__ == "__main__":
    main()
