"""`cidermill run` on one machine, killed in each of its parts: what is finished stays, the rest is generated once."""

import os
import signal

import pytest
from mill import Command, Mill, Row, alive, json_lines, wait_until

from api.queue.server import PrivateServer

pytestmark = pytest.mark.faults

LONG = 2  # the index of the request in whose middle something dies
LONG_TOKENS = 500
PROMPTS = [
    {"custom_id": "first", "prompt": "One.", "max_tokens": 5},
    {"custom_id": "second", "prompt": "Two.", "max_tokens": 6, "temperature": 0.7},
    {
        "custom_id": "long",
        "prompt": "Three.",
        "max_tokens": LONG_TOKENS,
        "temperature": 1.0,
        "seed": 3,
        "ignore_eos": True,
    },
    {"custom_id": "fourth", "prompt": "Four.", "max_tokens": 4},
]


def started_run(mill: Mill) -> tuple[Command, list[Row]]:
    """A run in the middle of its long request, and what the ledger has of the requests before that."""
    command = mill.start("run", mill.input(PROMPTS), "-o", "out.jsonl")
    mill.wait_for_state(LONG, "running")
    rows = mill.requests()
    assert [row["state"] for row in rows] == ["completed", "completed", "running", "queued"]
    return command, rows[:LONG]


def check_all_done(mill: Mill, before: list[Row]) -> list[Row]:
    """Everything has one result; what was finished before the fault is the very same as then."""
    rows = mill.requests()
    assert [row["state"] for row in rows] == ["completed"] * len(PROMPTS)
    assert rows[:LONG] == before
    assert rows[LONG]["completion_tokens"] == LONG_TOKENS
    for row in [*before, rows[-1]]:
        assert row["attempts"] == 1
        assert mill.events(row["id"]) == ["started", "finished"]
    assert mill.events(rows[LONG]["id"]).count("finished") == 1
    (batch,) = mill.batches()
    assert batch["state"] == "completed"
    assert batch["delivered_at"] is not None
    answers = json_lines((mill.folder / "out.jsonl").read_text("utf-8"))
    texts = [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [row["text"] for row in rows]
    return rows


def check_nothing_runs(mill: Mill) -> None:
    wait_until(lambda: not mill.workers(), "the end of the workers")
    assert PrivateServer.running(mill.data_dir) is None


def test_a_worker_killed_in_the_middle_of_a_request(working_mill: Mill) -> None:
    command, before = started_run(working_mill)
    (worker,) = working_mill.workers()
    os.kill(worker.pid, signal.SIGKILL)
    assert command.wait() == 0, command.stderr
    rows = check_all_done(working_mill, before)
    assert "the worker had died; a new one starts" in command.stderr
    assert rows[LONG]["attempts"] == 2
    assert working_mill.events(rows[LONG]["id"]) == ["started", "requeued", "started", "finished"]
    check_nothing_runs(working_mill)


def test_run_itself_killed_and_the_same_command_again(working_mill: Mill) -> None:
    command, before = started_run(working_mill)
    command.kill()
    again = working_mill.run("run", working_mill.folder / "in.jsonl", "-o", "out.jsonl")
    assert again.returncode == 0, again.stderr
    assert f"going on with {before[0]['batch_id']}" in again.stderr
    rows = check_all_done(working_mill, before)
    # The worker that was left behind ends its request before it stops.
    assert rows[LONG]["attempts"] == 1
    assert {line["request_id"] for line in json_lines(again.stdout)[:-1]} <= {rows[LONG]["id"], rows[-1]["id"]}
    check_nothing_runs(working_mill)


def test_the_private_server_killed(working_mill: Mill) -> None:
    command, before = started_run(working_mill)
    server = PrivateServer.running(working_mill.data_dir)
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    assert command.wait() == 0, command.stderr
    rows = check_all_done(working_mill, before)
    assert "the private server had died; it is up again with all it held" in command.stderr
    assert rows[LONG]["attempts"] == 1
    assert not alive(server.pid)
    check_nothing_runs(working_mill)


def test_interrupted_and_resumed(working_mill: Mill) -> None:
    command, before = started_run(working_mill)
    second = working_mill.run("run", working_mill.folder / "in.jsonl", "-o", "other.jsonl")
    assert second.returncode in (4, 5)
    assert second.stderr == (
        f"cidermill: process {command.pid} already runs or records in {working_mill.data_dir}; "
        "wait for it, or use another --data-dir\n"
    )
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    batch_id = before[0]["batch_id"]
    assert f"cidermill resume {batch_id}\n" in command.stderr
    assert "Traceback" not in command.stderr
    assert "cidermill: interrupted" in command.stderr.splitlines()
    check_nothing_runs(working_mill)
    assert not (working_mill.folder / "out.jsonl").exists()
    resumed = working_mill.run("resume", "latest")
    assert resumed.returncode == 0, resumed.stderr
    check_all_done(working_mill, before)
    check_nothing_runs(working_mill)


def test_what_an_interrupted_command_left_is_not_shown_as_the_next_ones(working_mill: Mill) -> None:
    command, before = started_run(working_mill)
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    left = before[0]["batch_id"]
    for arguments in ((), ("latest",)):
        status = working_mill.run("status", *arguments)
        assert status.stderr == f"nothing is running here; go on with: cidermill resume {left}\n"
    short = working_mill.input([{"custom_id": "mine", "prompt": "One.", "max_tokens": 2}], "short.jsonl")
    second = working_mill.run("run", short, "-o", "short.out.jsonl")
    assert second.returncode == 0, second.stderr
    *events, _summary = json_lines(second.stdout)
    assert [event["custom_id"] for event in events] == ["mine"]
    said = f"2 requests of {left}, left over from before, may come first; without: cidermill cancel {left}"
    assert second.stderr.splitlines()[0] == said
    said = f"{left}, left over from before, is done too; its answers: cidermill resume {left}"
    assert said in second.stderr.splitlines()
    resumed = working_mill.run("resume", left)
    assert resumed.returncode == 0, resumed.stderr
    assert len((working_mill.folder / "out.jsonl").read_text("utf-8").splitlines()) == len(PROMPTS)


def test_a_worker_that_was_drained_is_not_started_again(working_mill: Mill) -> None:
    """It ends its request, and `run` with it, which has nobody else."""
    command, before = started_run(working_mill)
    drained = working_mill.run("worker", "drain", "--all")
    assert drained.returncode == 0, drained.stderr
    assert command.wait() == 130
    assert "the worker here was told to end, and has ended\n" in command.stderr
    assert "had died" not in command.stderr
    assert f"cidermill resume {before[0]['batch_id']}\n" in command.stderr
    assert [row["state"] for row in working_mill.requests()] == ["completed"] * 3 + ["queued"]
    check_nothing_runs(working_mill)
    resumed = working_mill.run("resume", "latest")
    assert resumed.returncode == 0, resumed.stderr
    check_all_done(working_mill, before)


def test_interrupted_twice_nothing_is_left_behind(working_mill: Mill) -> None:
    """A worker that does not stop, and an impatient second Ctrl-C: it is killed, and the server still stops."""
    command, before = started_run(working_mill)
    children = wait_until(command.children, "the server and the worker")
    os.kill(children["worker"], signal.SIGSTOP)
    command.signal(signal.SIGINT)
    wait_until(lambda: f"cidermill resume {before[0]['batch_id']}" in command.stderr, "the first to be heard")
    command.signal(signal.SIGINT)
    assert command.wait(20) == 130
    assert not any(alive(pid) for pid in children.values())
    check_nothing_runs(working_mill)
