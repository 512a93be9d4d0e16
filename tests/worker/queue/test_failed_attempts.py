"""Attempts that fail: which are tried again, where, and how often; and answers that come too late."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from api.dataset.request_line import InputLine
from api.ledger.ledger import Ledger
from api.queue.elsewhere import FAILED_FIELD, Failure
from api.queue.leases import server_time
from api.queue.presence import live_workers
from api.recorder import Recorder, reader_of
from api.schemas import RequestBody, RequestError, RequestEvent
from api.states import RequestState
from tests.worker.queue.conftest import BATCH, REPOSITORY, Station, wait_until
from tests.worker.scripted_engine import scripted_text

pytestmark = pytest.mark.faults


def told(station: Station) -> list[tuple[str, str, int, str | None]]:
    """Kind, worker, attempt, reason of each event."""
    return [(event.kind, event.worker, event.attempt, event.reason) for event in station.pull()]


def error_of(event: RequestEvent) -> RequestError:
    assert event.result is not None
    assert event.result.error is not None
    return event.result.error


def start_machines(station: Station, *machines: str, seconds_per_token: float = 0.0) -> None:
    """One worker on each, named like it, all of them idle. None counts as gone because the machine here is busy."""
    for machine in machines:
        settings = {"lease_seconds": 45, "heartbeat_seconds": 10}
        station.start_worker(seconds_per_token, name=machine, host=machine, settings=settings)
    wait_until(
        lambda: sorted(w.name for w in live_workers(station.redis) if w.state == "idle") == sorted(machines), "workers"
    )


@pytest.mark.parametrize(("what", "reason"), [("fill", "out_of_memory"), ("raise", "internal_error")])
def test_a_failure_of_a_machine_is_mended_by_another_one(station: Station, what: str, reason: str) -> None:
    start_machines(station, "mac-1", "mac-2", seconds_per_token=0.5)  # while mac-2 runs one, mac-1 takes another
    station.enqueue(*[f"{what} on mac-1"] * 2, tokens=2)
    results = station.wait_for_results(2)
    assert {event.worker for event in results} == {"mac-2"}
    assert all(event.result is not None and event.result.error is None for event in results)
    requeued = [one for one in told(station) if one[0] == "requeued"]
    assert 1 <= len(requeued) <= 2
    assert set(requeued) == {("requeued", "mac-1", 1, reason)}
    assert sorted(event.attempt for event in results) == [1] * (2 - len(requeued)) + [2] * len(requeued)


@pytest.mark.parametrize(("what", "code", "status"), [("fill", "out_of_memory", 507), ("raise", "internal_error", 500)])
def test_the_only_machine_tries_once_more_and_then_says_so(station: Station, what: str, code: str, status: int) -> None:
    request_id, good = station.enqueue(what, "a prompt")
    start_machines(station, "mac-1")
    failed, answered = station.wait_for_results(2)
    assert (failed.request_id, answered.request_id) == (request_id, good)
    assert told(station)[:4] == [
        ("started", "mac-1", 1, None),
        ("requeued", "mac-1", 1, code),
        ("started", "mac-1", 2, None),
        ("finished", "mac-1", 2, None),
    ]
    assert (error_of(failed).code, error_of(failed).status) == (code, status)
    assert "mac-1, after an attempt had failed on mac-1" in error_of(failed).message
    wait_until(lambda: not station.queue.live([request_id, good]), "the end of the jobs")
    assert len(station.starts()) == 3


def test_a_request_that_fails_on_every_machine_fails_on_two(station: Station) -> None:
    start_machines(station, "mac-1", "mac-2", "mac-3")
    station.enqueue("fill")
    [event] = station.wait_for_results(1)
    kinds = [(kind, attempt) for kind, _, attempt, _ in told(station)]
    assert kinds == [("started", 1), ("requeued", 1), ("started", 2), ("finished", 2)]
    first, second = (worker for kind, worker, _, _ in told(station) if kind == "started")
    assert first != second
    assert error_of(event).message.startswith(f"memory ran out on {second}, after an attempt had failed on {first};")


def test_a_bad_request_runs_once(station: Station) -> None:
    bad, good = station.enqueue("a prompt", "another")
    station.redis.hset(f"rq:job:{bad}", "data", json.dumps(["cidermill.generate", None, [{"colour": 1}], {}]))
    start_machines(station, "mac-1")
    events = {event.request_id: event for event in station.wait_for_results(2)}
    assert (error_of(events[bad]).code, events[bad].attempt) == ("invalid_request", 1)
    assert station.starts() == [(good, station.processes[0].pid)]


def test_a_failure_does_not_count_as_a_lost_worker(station: Station) -> None:
    [request_id] = station.enqueue("raise on mac-1", tokens=40)
    failure = Failure(server_time(station.redis), "mac-1")
    station.redis.hset(f"rq:job:{request_id}", FAILED_FIELD, failure.written())
    victim = station.start_worker(seconds_per_token=0.05, name="mac-2", host="mac-2")
    wait_until(station.starts, "the start")
    victim.kill()
    station.start_worker(name="mac-3", host="mac-3")
    [event] = station.wait_for_results(1)
    assert event.result is not None
    assert event.result.text == scripted_text("raise on mac-1", 40)
    assert told(station) == [
        ("started", "mac-2", 1, None),
        ("requeued", "mac-2", 1, "lease_lost"),
        ("started", "mac-3", 2, None),
        ("finished", "mac-3", 2, None),
    ]


@pytest.fixture
def ledger(station: Station) -> Iterator[Ledger]:
    with Ledger.open(station.data_dir / "ledger.sqlite3") as opened:
        yield opened


def test_an_answer_that_comes_too_late_is_noted_and_changes_nothing(station: Station, ledger: Ledger) -> None:
    prompt = "fall asleep on mac-1"
    ledger.create_batch(
        batch_id=BATCH,
        model=station.model,
        priority="normal",
        input_path=Path("in.jsonl"),
        input_sha256="0",
        fingerprint="f",
        output_path=None,
        output_format="jsonl",
        lines=[InputLine(1, "only", RequestBody(prompt=prompt, max_tokens=4))],
    )
    [request_id] = station.enqueue(prompt)
    recorder = Recorder(ledger, station.queue, reader_of(ledger, station.redis, "test"))
    sleeper = station.start_worker(name="mac-1", host="mac-1")
    wait_until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED, "the worker to fall asleep")
    station.start_worker(name="mac-2", host="mac-2")

    def recorded(kind: str) -> bool:
        recorder.step(block_ms=20)
        return any(entry.kind == kind for entry in ledger.history(BATCH))

    wait_until(lambda: recorded("finished"), "the answer of the other worker")
    before = ledger.request(request_id)
    os.kill(sleeper.pid, signal.SIGCONT)
    wait_until(lambda: recorded("late"), "the late answer")
    assert ledger.request(request_id) == before
    assert (before.state, before.worker, before.attempts) == (RequestState.COMPLETED, "mac-2", 2)
    assert ledger.batch(BATCH).counts.completed == 1

    command = [sys.executable, "-m", "cli.main", "events", request_id, "--data-dir", str(station.data_dir)]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(row["kind"], row["worker"], row["attempt"], row["detail"]) for row in rows] == [
        ("queued", None, 0, None),
        ("started", "mac-1", 1, None),
        ("requeued", "mac-1", 1, "lease_lost"),
        ("started", "mac-2", 2, None),
        ("finished", "mac-2", 2, "length"),
        ("late", "mac-1", 1, "length"),
    ]
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(10) == 0
    told_by_sleeper = (station.folder / "worker-0.log").read_text()
    assert told_by_sleeper.index("lease_lost") < told_by_sleeper.index("finished")
