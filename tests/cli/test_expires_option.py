"""`--expires`, from the command line to what `status` and `results` say."""

import signal

import pytest
import typer
from mill import Mill, json_lines, wait_until

from cli.expiry import seconds_of

PROMPTS = [{"prompt": "One.", "max_tokens": 3}, {"prompt": "Two.", "max_tokens": 3}]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("24h", 86_400), ("7d", 604_800), ("1.5h", 5400), ("3650d", 315360000)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1e3h", "1h30m", "7 d", "٣h", "24H", "0.h", "9999999999s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration; give a number and s, m, h or d, as in 90m"):
        seconds_of(text)


@pytest.mark.parametrize("text", ["0s", "0.0d", "3651d", "999999999h"])
def test_a_duration_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is out of range; give more than 0s and at most 3650d"):
        seconds_of(text)


def test_nonsense_is_wrong_usage(mill: Mill) -> None:
    done = mill.run("run", mill.input(PROMPTS), "--expires", "soon")
    assert done.returncode == 2
    assert "'--expires': 'soon' is no duration" in done.stderr
    assert mill.batches() == []


def test_a_submitted_batch_has_its_deadline_and_one_without_the_flag_has_none(mill: Mill) -> None:
    mill.start_redis()
    [limited] = json_lines(mill.run("submit", mill.input(PROMPTS), "--expires", "90m").stdout)
    assert 5390 < limited["expires_at"] - limited["created_at"] <= 5400
    [free] = json_lines(mill.run("submit", mill.input(PROMPTS)).stdout)
    assert (free["expires_at"], free["expires"]) == (None, None)
    listed = {row["id"]: row for row in json_lines(mill.run("status").stdout)}
    assert listed[limited["id"]]["expires"] == limited["expires"]
    assert listed[limited["id"]]["state"] == "in_progress"


def test_a_batch_that_no_worker_took_in_time(mill: Mill) -> None:
    mill.start_redis()
    mill.run("submit", mill.input(PROMPTS), "--expires", "0.1s")
    told = mill.run("status", "latest").stderr
    assert "has passed: what is open of it expires while `cidermill record` runs\n" in told
    recorder = mill.start("record")
    wait_until(lambda: mill.batches()[0]["state"] == "expired", "the deadline")
    recorder.signal(signal.SIGTERM)
    assert recorder.wait() == 0
    resumed = mill.run("resume", "latest")
    assert resumed.stderr.startswith("0 requests of ")
    row = json_lines(mill.run("status", "latest").stdout)[0]
    assert (row["state"], row["done"], row["expired"], row["failed"]) == ("expired", "2/2", 2, 0)
    assert row["counts"] == {"queued": 0, "running": 0, "completed": 0, "failed": 0, "cancelled": 0, "expired": 2}
    taken = mill.run("results", "latest")
    assert taken.returncode == 3
    error = {"code": "batch_expired", "message": "The batch expired before this request had finished."}
    assert [(line["response"], line["error"]) for line in json_lines(taken.stdout)] == [(None, error)] * 2
    [sums] = json_lines(mill.run("stats", "latest").stdout)
    assert (sums["state"], sums["counts"]["expired"]) == ("expired", 2)


def test_a_run_ends_at_its_deadline_with_what_is_there(mill: Mill) -> None:
    """The worker has not loaded its model by then."""
    done = mill.run("run", mill.input(PROMPTS), "-o", "out.jsonl", "-f", "jsonl", "--expires", "0.1s")
    assert done.returncode == 3, done.stderr
    assert [row["state"] for row in mill.requests()] == ["expired", "expired"]
    assert [mill.events(row["id"]) for row in mill.requests()] == [["expired"], ["expired"]]
    answers = json_lines((mill.folder / "out.jsonl").read_text("utf-8"))
    assert [(line["state"], line["text"], line["error"]["code"]) for line in answers] == [
        ("expired", None, "batch_expired"),
        ("expired", None, "batch_expired"),
    ]
