"""`cidermill run` from a file to a file: real server, real worker, real engine, a tiny model."""

import csv
import io
import json
from dataclasses import dataclass

import pyarrow.parquet
import pytest
from mill import Command, Mill, MillAt, Row, alive, json_lines, wait_until

from api.queue.server import PrivateServer

PROMPTS = [
    {"custom_id": "plain", "prompt": "The first of six.", "max_tokens": 6},
    {"custom_id": "chat", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 7},
    {"custom_id": "sampled", "prompt": "A third.", "max_tokens": 8, "temperature": 1.0, "seed": 5, "ignore_eos": True},
    {"custom_id": "Ümlaut", "prompt": "Wie geht's?", "max_tokens": 4},
    {
        "custom_id": "openai",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "And this?"}], "max_tokens": 5, "ignore_eos": True},
    },
    {"prompt": "The last one has no id.", "max_tokens": 3, "ignore_eos": True},
]
IDS = ["plain", "chat", "sampled", "Ümlaut", "openai", "request-6"]
SUMS = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "drafted_tokens", "accepted_tokens", "passes")


@dataclass
class Ran:
    """A run that has ended well, and the pids of what it had started."""

    mill: Mill
    command: Command
    children: dict[str, int]
    output: str

    @property
    def answers(self) -> list[Row]:
        return json_lines(self.output)

    @property
    def summary(self) -> Row:
        return json_lines(self.command.stdout)[-1]


@pytest.fixture(scope="module")
def ran(mill_at: MillAt) -> Ran:
    mill = mill_at()
    path = mill.input(PROMPTS)
    command = mill.start("run", path, "-o", "out.jsonl")
    children = wait_until(command.children, "the server and the worker")
    assert command.wait() == 0, command.stderr
    return Ran(mill, command, children, (mill.folder / "out.jsonl").read_text("utf-8"))


def test_the_output_is_openai_batch_lines_in_input_order(ran: Ran) -> None:
    assert [answer["custom_id"] for answer in ran.answers] == IDS
    assert [answer["response"]["status_code"] for answer in ran.answers] == [200] * 6
    assert [answer["error"] for answer in ran.answers] == [None] * 6
    objects = [answer["response"]["body"]["object"] for answer in ran.answers]
    assert objects == ["chat.completion"] * 6
    for answer, row in zip(ran.answers, ran.mill.requests(), strict=True):
        body = answer["response"]["body"]
        assert body["choices"][0]["message"]["content"] == row["text"]
        assert body["choices"][0]["finish_reason"] == row["finish_reason"]
        assert body["usage"]["completion_tokens"] == row["completion_tokens"]


def test_a_request_that_ignores_the_end_has_the_tokens_it_asked_for(ran: Ran) -> None:
    tokens = [row["completion_tokens"] for row in ran.mill.requests()]
    assert [tokens[index] for index in (2, 4, 5)] == [8, 5, 3]
    assert all(1 <= found <= asked["max_tokens"] for found, asked in zip(tokens[:2], PROMPTS[:2], strict=True))


def test_standard_output_is_a_json_line_for_each_request_and_a_summary(ran: Ran) -> None:
    lines = json_lines(ran.command.stdout)
    assert [line["event"] for line in lines] == ["finished"] * 6 + ["summary"]
    texts = {row["id"]: row["text"] for row in ran.mill.requests()}
    assert {line["request_id"]: line["text"] for line in lines[:-1]} == texts
    assert lines[-1]["output"] == str(ran.mill.folder / "out.jsonl")


def test_the_summary_is_the_sum_of_the_ledger(ran: Ran) -> None:
    columns = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
    (sums,) = ran.mill.ask(f"SELECT {columns}, sum(wall_ms) AS wall_ms FROM results")
    summary = ran.summary
    assert {name: summary[name] for name in SUMS} == {name: sums[name] for name in SUMS}
    assert summary["tokens_per_pass"] == pytest.approx(sums["completion_tokens"] / sums["passes"])
    assert summary["e2e_tps"] == pytest.approx(1000 * sums["completion_tokens"] / sums["wall_ms"])
    assert sum(summary["phases_ms"].values()) == pytest.approx(sums["wall_ms"])
    assert summary["counts"] == {"completed": 6} | dict.fromkeys(("queued", "running", "failed", "cancelled"), 0) | {
        "expired": 0
    }


def test_the_ledger_has_one_batch_whose_requests_ran_once(ran: Ran) -> None:
    (batch,) = ran.mill.batches()
    assert (batch["state"], batch["model"]) == ("completed", ran.mill.model)
    assert batch["delivered_at"] >= batch["finished_at"]
    for row in ran.mill.requests():
        assert (row["state"], row["attempts"]) == ("completed", 1)
        assert row["queued_at"] <= row["started_at"] <= row["finished_at"]
        assert ran.mill.events(row["id"]) == ["started", "finished"]


def test_nothing_is_left_running(ran: Ran) -> None:
    assert set(ran.children) == {"server", "worker"}
    assert not any(alive(pid) for pid in ran.children.values())
    assert PrivateServer.running(ran.mill.data_dir) is None
    assert ran.mill.workers() == []


def test_the_workers_log_quotes_no_prompt(ran: Ran) -> None:
    log = (ran.mill.data_dir / "logs" / "worker.log").read_text("utf-8")
    assert "Traceback" not in log
    assert "The first of six" not in log


def test_the_same_command_makes_a_new_batch_when_the_first_is_delivered(ran: Ran) -> None:
    """The texts are the same again: a greedy one by itself, a sampled one by its seed."""
    first = [answer["response"]["body"]["choices"][0] for answer in ran.answers]
    again = ran.mill.run("run", ran.mill.folder / "in.jsonl", "-o", "out.jsonl")
    assert again.returncode == 0, again.stderr
    assert [batch["state"] for batch in ran.mill.batches()] == ["completed", "completed"]
    answers = json_lines((ran.mill.folder / "out.jsonl").read_text("utf-8"))
    assert [answer["response"]["body"]["choices"][0] for answer in answers] == first
    assert len({answer["id"] for answer in answers + ran.answers}) == 12


# Other kinds of input and output.


def test_csv_to_csv_with_a_template(working_mill: Mill) -> None:
    path = working_mill.folder / "in.csv"
    path.write_text('id,text\na,"one, two"\nb,three\n', "utf-8")
    done = working_mill.run(
        "run", path, "--template", "Say {text}!", "--format", "csv", "--max-tokens", "3", "-o", "out.csv"
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO((working_mill.folder / "out.csv").read_text("utf-8"))))
    assert [(row["custom_id"], row["state"]) for row in rows] == [("a", "completed"), ("b", "completed")]
    ledger = working_mill.requests()
    assert [json.loads(row["body"])["prompt"] for row in ledger] == ["Say one, two!", "Say three!"]
    assert [row["text"] for row in rows] == [row["text"] for row in ledger]
    assert all(1 <= int(row["completion_tokens"]) <= 3 for row in rows)


def test_text_lines_to_parquet(working_mill: Mill) -> None:
    path = working_mill.folder / "in.txt"
    path.write_text("one prompt\n\nanother\n", "utf-8")
    done = working_mill.run("run", path, "--format", "parquet", "--max-tokens", "2")
    assert done.returncode == 0, done.stderr
    table = pyarrow.parquet.read_table(working_mill.folder / "in.out.parquet").to_pylist()
    ledger = working_mill.requests()
    assert [row["text"] for row in table] == [row["text"] for row in ledger]
    assert [json.loads(row["body"])["prompt"] for row in ledger] == ["one prompt", "another"]
    assert [row["line"] for row in table] == [1, 3]


def test_standard_input_to_json_lines(working_mill: Mill) -> None:
    lines = b'{"prompt": "from a pipe", "max_tokens": 2}\n{"prompt": "and another", "max_tokens": 2}\n'
    done = working_mill.run("run", "-", "--format", "jsonl", "-o", "out.jsonl", stdin=lines)
    assert done.returncode == 0, done.stderr
    rows = json_lines((working_mill.folder / "out.jsonl").read_text("utf-8"))
    assert [(row["custom_id"], row["error"]) for row in rows] == [("request-1", None), ("request-2", None)]
    assert [row["text"] for row in rows] == [row["text"] for row in working_mill.requests()]


def test_answers_on_standard_output_are_alone_there(working_mill: Mill) -> None:
    """So that they can be piped on; what is said on the way is on standard error."""
    path = working_mill.input([{"prompt": "to a pipe", "max_tokens": 3}, {"prompt": "twice", "max_tokens": 2}])
    done = working_mill.run("run", path, "--format", "text", "-o", "-")
    assert done.returncode == 0, done.stderr
    texts = [row["text"] for row in working_mill.requests()]
    assert done.stdout == "".join(f"{text}\n\x1e\n" for text in texts)
    assert '"event": "summary"' in done.stderr
