"""Log lines on standard error, for people or for programs. What is in Redis can be in them: no terminal obeys it.

A line tells a transition of a request (api/transitions.py), whose facts stand apart, or is a sentence:

text  2026-11-30T05:12:33.123Z info finished request=batch_01...-3 worker=mac-7-a1 attempt=1 tokens=33 ms=3366
      2026-11-30T05:12:40.001Z warning Redis does not answer; trying again in 1.0 s
json  {"at": "2026-11-30T05:12:33.123Z", "level": "info", "logger": "cidermill.worker", "event": "finished",
       "request": "batch_01...-3", "worker": "mac-7-a1", "attempt": 1, "tokens": 33, "ms": 3366}
      {"at": ..., "level": "warning", "logger": "cidermill.worker", "message": "Redis does not answer; ..."}

An exception is its type and where it was raised; its message may quote a prompt.

Commands that do not run for long show warnings and errors alone, without time and level.
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from typing import Any, Literal

import typer

from api.transitions import FACTS
from cli.output import printable

LONGEST_VALUE = 300
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)
_DELETE = {0x7F: "\\u007f"}


class _Formatter(logging.Formatter):
    """Without the messages of exceptions, whoever logs them."""

    def formatException(self, ei: Any) -> str:
        kind, _, place = ei
        return f"{''.join(traceback.format_tb(place))}{getattr(kind, '__qualname__', 'unknown')}"


class LineFormatter(_Formatter):
    """A message with its facts as key=value, control characters shown and not obeyed. stamped: with time and level."""

    def __init__(self, *, stamped: bool) -> None:
        super().__init__("%(message)s")
        self._stamped = stamped

    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = [f"{name}={_text(value)}" for name, value in _facts(record).items()]
        line = " ".join([record.message, *facts])
        return f"{_stamp(record)} {record.levelname.lower()} {line}" if self._stamped else line

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonFormatter(_Formatter):
    """A JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        line = {"at": _stamp(record), "level": record.levelname.lower(), "logger": record.name}
        line |= {"event" if facts else "message": record.getMessage(), **facts}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line).translate(_DELETE)


def log_printably() -> None:
    """Warnings and errors of all libraries, one handler for all."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(stamped=False))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


def log_transitions(log_format: Literal["text", "json"]) -> None:
    """For a process that runs for long: also what happens to requests, every line with its time."""
    formatter = JsonFormatter() if log_format == "json" else LineFormatter(stamped=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
    logging.getLogger("cidermill").setLevel(logging.INFO)


def complain(line: str) -> None:
    """The last words of a command: a line of the log where that is JSON, else the bare line."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger("cidermill").error("%s", line)
    else:
        typer.echo(printable(line), err=True)


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts: dict[str, Any] = getattr(record, FACTS, {})
    return {name: value[:LONGEST_VALUE] if isinstance(value, str) else value for name, value in facts.items()}


def _text(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _stamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
