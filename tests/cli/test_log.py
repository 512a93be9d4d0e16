"""The format of log lines, and what a worker and a recorder say of a request."""

import json
import logging
import sys
from typing import Any

import pytest
from mill import Mill, json_lines, wait_until

from api.transitions import about
from cli.log import JsonFormatter, LineFormatter

AT = 1_796_000_000.25
STAMP = "2026-11-30T00:53:20.250Z"


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    found = logging.makeLogRecord({"name": "cidermill.worker", "levelno": level, "msg": message, "args": arguments})
    found.levelname = logging.getLevelName(level)
    found.created, found.msecs = AT, 250.0
    found.__dict__.update(extra)
    return found


@pytest.mark.parametrize(
    ("stamped", "line"),
    [
        (True, f"{STAMP} info finished request=b-3 worker=mac-7 attempt=1 ms=12"),
        (False, "finished request=b-3 worker=mac-7 attempt=1 ms=12"),
    ],
)
def test_a_transition_for_people(stamped: bool, line: str) -> None:
    extra = about("b-3", "mac-7", attempt=1, ms=12, error=None)
    assert LineFormatter(stamped=stamped).format(record("finished", **extra)) == line


def test_a_transition_for_programs() -> None:
    extra = about("b-3", "", attempt=1, tokens_per_second=9.5)
    assert json.loads(JsonFormatter().format(record("finished", **extra))) == {
        "at": STAMP,
        "level": "info",
        "logger": "cidermill.worker",
        "event": "finished",
        "request": "b-3",
        "attempt": 1,
        "tokens_per_second": 9.5,
    }


def test_a_sentence() -> None:
    said = record("Redis is away for %d s", 4, level=logging.WARNING)
    assert LineFormatter(stamped=True).format(said) == f"{STAMP} warning Redis is away for 4 s"
    assert json.loads(JsonFormatter().format(said)) == {
        "at": STAMP,
        "level": "warning",
        "logger": "cidermill.worker",
        "message": "Redis is away for 4 s",
    }


@pytest.mark.parametrize(
    ("worker", "shown"),
    [
        ("two words", '"two words"'),
        ('a"b=c', r'"a\"b=c"'),
        ("a\nfinished request=x", r'"a\nfinished request=x"'),
        ("\x1b]0;owned\x07", r'"\u001b]0;owned\u0007"'),
        ("\x9b2J", '"\ufffd2J"'),
        ("m" * 400, "m" * 300),
    ],
)
def test_a_forged_name_is_one_value_of_one_line(worker: str, shown: str) -> None:
    line = LineFormatter(stamped=False).format(record("late", **about("b-3", worker)))
    assert line == f"late request=b-3 worker={shown}"
    as_json = JsonFormatter().format(record("late", **about("b-3", worker)))
    assert as_json.isprintable()
    assert json.loads(as_json)["worker"] == worker[:300]


def raised() -> Any:
    """A ValueError after a KeyError, with a prompt in both."""
    try:
        try:
            raise KeyError("a secret")
        except KeyError as error:
            raise ValueError("a secret".upper()) from error
    except ValueError:
        return sys.exc_info()


def test_a_traceback_stays_on_its_line_of_json() -> None:
    line = JsonFormatter().format(record("failed", exc_info=raised()))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError")


@pytest.mark.parametrize("formatter", [JsonFormatter(), LineFormatter(stamped=True), LineFormatter(stamped=False)])
def test_an_exception_is_its_type_and_place_and_not_its_message(formatter: logging.Formatter) -> None:
    line = formatter.format(record("failed", exc_info=raised()))
    assert "ValueError" in line
    assert f"{__name__}.py" in line
    assert "in raised" in line
    assert "A SECRET" not in line
    assert "KeyError: " not in line


def test_a_worker_and_a_recorder_tell_each_transition_once(working_mill: Mill) -> None:
    mill = working_mill
    mill.start_redis()
    mill.environment |= {"CIDERMILL_LEASE_SECONDS": "45", "CIDERMILL_HEARTBEAT_SECONDS": "5"}  # a busy machine is late
    assert mill.run("submit", mill.input([{"prompt": "a secret", "max_tokens": 3}])).returncode == 0
    recorder = mill.start("record", "--log-format", "json")
    worker = mill.start("worker", "--log-format", "json")
    wait_until(lambda: '"recorded"' in recorder.stderr, "the record")
    for command in (worker, recorder):
        command.process.terminate()
        assert command.wait() == 0
    [row] = mill.requests()
    told = json_lines(worker.stderr)
    assert next(line["message"] for line in told if "message" in line) == f"loading {mill.model}"
    taken, started, finished = [line for line in told if "event" in line]
    assert [line["event"] for line in (taken, started, finished)] == ["taken", "started", "finished"]
    assert {line["request"] for line in (taken, started, finished)} == {row["id"]}
    assert {line["worker"] for line in (taken, started, finished)} == {row["worker"]}
    assert (finished["attempt"], finished["tokens"], finished["finish_reason"]) == (1, 3, "length")
    assert finished["ms"] == round(row["wall_ms"])
    [recorded] = [line for line in json_lines(recorder.stderr) if "event" in line]
    facts = {name: recorded[name] for name in ("event", "request", "worker", "attempt", "detail", "logger")}
    assert facts == {
        "event": "recorded",
        "request": row["id"],
        "worker": row["worker"],
        "attempt": 1,
        "detail": "length",
        "logger": "cidermill.ledger",
    }
    assert "secret" not in worker.stderr + recorder.stderr


def test_the_last_words_of_a_process_that_logs_json_are_json(mill: Mill) -> None:
    done = mill.run("record", "--log-format", "json", env={"CIDERMILL_REDIS_URL": "redis://127.0.0.1:1"})
    assert done.returncode == 4
    said = json_lines(done.stderr)[-1]
    assert said["level"] == "error"
    assert said["message"].startswith("cidermill: ")
