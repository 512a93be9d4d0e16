"""Separate processes over one Redis: `submit`, `worker`, `record`, and what becomes of a batch when they die."""

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from mill import Command, Mill, MillAt, Row, json_lines, wait_until

from api.queue.connection import connect
from api.queue.presence import live_workers
from api.queue.requests import RequestQueue

NO_RECORDER = "nothing takes results home into this ledger; start on this machine: cidermill record"
LONG, LONG_TOKENS = 1, 600
PROMPTS = [
    {"prompt": "One.", "max_tokens": 4},
    {"prompt": "Two.", "max_tokens": LONG_TOKENS, "temperature": 1.0, "seed": 1, "ignore_eos": True},
    {"prompt": "Three.", "max_tokens": 3},
    {"prompt": "Four.", "max_tokens": 3},
]

# Not at its end before a command that is started beside it has begun, on however busy a machine.
LASTING = [*PROMPTS[:LONG], {**PROMPTS[LONG], "max_tokens": 1900, "n": 8}, *PROMPTS[LONG + 1 :]]


@pytest.fixture
def fleet(working_mill: Mill) -> Iterator[Mill]:
    """A mill whose commands all find one Redis in their environment."""
    working_mill.start_redis()
    return working_mill


def queue_of(mill: Mill) -> RequestQueue:
    assert mill.server is not None
    return RequestQueue(connect(mill.server.url), max_attempts=2, request_timeout_seconds=60)


def submitted(mill: Mill, prompts: Sequence[Row] = PROMPTS) -> str:
    """The id of a batch of four prompts on the queue."""
    done = mill.run("submit", mill.input(prompts))
    assert done.returncode == 0, done.stderr
    (row,) = json_lines(done.stdout)
    assert (row["state"], row["done"], row["model"]) == ("in_progress", "0/4", mill.model)
    assert sum(queue_of(mill).depth(mill.model).values()) == len(PROMPTS)
    return str(row["id"])


def stopped(command: Command) -> None:
    command.signal(signal.SIGTERM)
    assert command.wait() == 0, command.stderr
    assert "Traceback" not in command.stderr


@pytest.mark.faults
def test_a_recorder_killed_and_another_one_started(fleet: Mill) -> None:
    submitted(fleet)
    recorder, worker = fleet.start("record"), fleet.start("worker")
    fleet.wait_for_state(LONG, "running")
    before = fleet.requests()
    recorder.kill()
    second = fleet.start("record")
    fleet.wait_for_state(3, "completed")
    stopped(worker)
    stopped(second)
    rows = fleet.requests()
    assert rows[0] == before[0]
    assert [(row["state"], row["attempts"]) for row in rows] == [("completed", 1)] * 4
    assert [fleet.events(row["id"]) for row in rows] == [["started", "finished"]] * 4
    assert rows[LONG]["completion_tokens"] == LONG_TOKENS
    (batch,) = fleet.batches()
    assert batch["state"] == "completed"
    taken = fleet.run("results", "latest", "-f", "text")
    assert taken.stdout == "".join(f"{row['text']}\n\x1e\n" for row in rows)
    assert taken.stderr == "4 requests written\n"


def test_a_batch_cancelled_in_the_middle_of_a_request(fleet: Mill) -> None:
    batch_id = submitted(fleet, LASTING)
    fleet.start("record")
    worker = fleet.start("worker")
    fleet.wait_for_state(LONG, "running")
    first = fleet.requests()[0]
    done = fleet.run("cancel", "latest")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"3 requests of {batch_id} cancelled\n"
    (row,) = json_lines(done.stdout)
    assert (row["state"], row["done"]) == ("cancelled", "4/4")
    redis = connect(fleet.environment["CIDERMILL_REDIS_URL"])
    wait_until(lambda: [info.state for info in live_workers(redis)] == ["idle"], "the worker to let go")
    rows = fleet.requests()
    assert rows[0] == first
    assert [row["state"] for row in rows] == ["completed", "cancelled", "cancelled", "cancelled"]
    # The worker that stopped tells what it had; the ledger keeps the cancellation.
    wait_until(lambda: fleet.events(rows[LONG]["id"]) == ["started", "cancelled", "late"], "the last word")
    assert [fleet.events(row["id"]) for row in rows[2:]] == [["cancelled"]] * 2
    assert sum(queue_of(fleet).depth(fleet.model).values()) == 0
    stopped(worker)


def test_a_run_cancelled_from_another_terminal(working_mill: Mill) -> None:
    """No Redis is configured: `cancel` finds the private server, and `run` ends with what is there."""
    command = working_mill.start("run", working_mill.input(LASTING), "-o", "out.jsonl")
    working_mill.wait_for_state(LONG, "running")
    done = working_mill.run("cancel", "latest")
    assert done.returncode == 0, done.stderr
    assert command.wait() == 3
    rows = working_mill.requests()
    assert [row["state"] for row in rows] == ["completed", "cancelled", "cancelled", "cancelled"]
    assert [working_mill.events(row["id"])[0] for row in rows] == ["started", "started", "cancelled", "cancelled"]
    answers = json_lines((working_mill.folder / "out.jsonl").read_text("utf-8"))
    assert [answer["error"] is None for answer in answers] == [True, False, False, False]


def in_progress(mill: Mill) -> list[dict[str, Any]]:
    return [batch for batch in mill.batches() if batch["state"] == "in_progress"]


def submitting(mill: Mill) -> tuple[Command, str]:
    """A `submit` whose batch is in the ledger, and which waits for a Redis that takes no writes."""
    redis = connect(mill.environment["CIDERMILL_REDIS_URL"])
    redis.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
    command = mill.start("submit", mill.input(PROMPTS))
    (batch,) = wait_until(lambda: in_progress(mill), "the whole batch in the ledger")
    return command, batch["id"]


def check_resumable(mill: Mill, batch_id: str) -> None:
    assert queue_of(mill).depth(mill.model) == {"high": 0, "normal": 0, "low": 0}
    for expected in (4, 0):
        resumed = mill.run("resume", batch_id)
        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stderr == f"{expected} requests of {batch_id} put back on the queue\n"
    assert queue_of(mill).depth(mill.model) == {"high": 0, "normal": 4, "low": 0}
    assert [(row["state"], row["attempts"]) for row in mill.requests()] == [("queued", 0)] * 4


@pytest.mark.faults
def test_a_submission_killed_before_redis_took_it_is_resumed(fleet: Mill) -> None:
    command, batch_id = submitting(fleet)
    command.kill()
    connect(fleet.environment["CIDERMILL_REDIS_URL"]).execute_command("CLIENT", "UNPAUSE")
    check_resumable(fleet, batch_id)


@pytest.fixture(scope="module", autouse=True)
def bereft(mill_at: MillAt) -> tuple[Mill, Command, str]:
    """A `submit` whose Redis has died under it. It does not give up for ten seconds, in which the other tests run."""
    mill = mill_at()
    mill.start_redis()
    command, batch_id = submitting(mill)
    assert mill.server is not None
    os.kill(mill.server.pid, signal.SIGKILL)
    return mill, command, batch_id


def test_a_run_over_a_fleet_records_and_leaves_the_work_to_its_workers(fleet: Mill) -> None:
    """With --redis `run` starts no worker of its own; the one that is there answers."""
    worker = fleet.start("worker")
    done = fleet.run("run", fleet.input(PROMPTS[2:]), "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert [found.pid for found in fleet.workers()] == [worker.pid]
    answers = json_lines((fleet.folder / "out.jsonl").read_text("utf-8"))
    texts = [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [row["text"] for row in fleet.requests()]
    assert fleet.server is not None
    assert fleet.server.alive()


def test_a_batch_is_looked_at_while_it_waits(fleet: Mill) -> None:
    batch_id = submitted(fleet)
    status = fleet.run("status", batch_id[:20].upper())
    assert status.returncode == 0, status.stderr
    batch, depth = json_lines(status.stdout)
    assert batch["counts"]["queued"] == 4
    assert depth == {"model": fleet.model, "high": 0, "normal": 4, "low": 0}
    missing = [f"no live worker serves {fleet.model}; start one: cidermill worker --model {fleet.model}", NO_RECORDER]
    assert status.stderr.splitlines() == missing
    (shown,) = json_lines(fleet.run("show", f"{batch_id}-1").stdout)
    assert (shown["state"], shown["body"]["seed"], shown["result"]) == ("queued", 1, None)
    (stats,) = json_lines(fleet.run("stats").stdout)
    assert (stats["counts"]["queued"], stats["wall_seconds"], stats["acceptance"]) == (4, None, None)
    assert json_lines(fleet.run("status").stdout) == [batch]


def test_a_batch_of_a_redis_that_is_not_configured_is_said_to_be_there(fleet: Mill) -> None:
    batch_id = submitted(fleet)
    with contextlib.closing(sqlite3.connect(fleet.data_dir / "ledger.sqlite3")) as ledger, ledger:
        ledger.execute("UPDATE batches SET placed_in = 'mill:6379/0'")
    del fleet.environment["CIDERMILL_REDIS_URL"]
    for command in (["status"], ["status", "latest"]):
        said = fleet.run(*command).stderr
        assert said.startswith(f"{batch_id} is in the Redis at mill:6379/0, of which nothing is known here")
    done = fleet.run("run", fleet.input([{"prompt": "One.", "max_tokens": 2}], "one.jsonl"), "-o", "one.out.jsonl")
    assert done.returncode == 0, done.stderr
    assert "left over" not in done.stderr
    assert [row["state"] for row in fleet.requests()] == ["queued"] * 4 + ["completed"]


@pytest.mark.faults
def test_a_submission_whose_redis_died_names_the_batch_and_is_resumed(bereft: tuple[Mill, Command, str]) -> None:
    fleet, command, batch_id = bereft
    assert command.wait() == 4
    (sentence,) = command.stderr.splitlines()
    assert sentence.startswith(f"cidermill: batch {batch_id} is safe in the ledger but not wholly on the queue")
    assert sentence.endswith(f"when Redis is back, run: cidermill resume {batch_id}")
    assert command.stdout == ""
    fleet.start_redis()
    check_resumable(fleet, batch_id)
