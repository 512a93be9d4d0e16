"""Rows for people and for programs: a table on a terminal, JSON lines in a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

# Controls as the symbols for them, C1's, which have none, as U+FFFD.
_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
}
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def piped() -> bool:
    """Whether standard output goes to a program."""
    return not sys.stdout.isatty()


def emit(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], title: str = "") -> None:
    """Print rows. `columns` maps the keys shown in the table to their headings; JSON lines carry every key."""
    if piped():
        for row in rows:
            emit_json(row)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for key, heading in columns.items():
        table.add_column(heading, overflow="fold", no_wrap=key == "id")  # an id in two pieces cannot be copied
    for row in rows:
        table.add_row(*(escape(printable(shown(row.get(key)))) for key in columns))
    Console().print(table)


def emit_json(row: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """One JSON line, on standard output unless that is taken."""
    stream = stream or sys.stdout
    with leaving_reader(stream):
        # JSON escapes C0's controls alone; a terminal at the end of the pipe obeys the others too.
        stream.write(json.dumps(row, ensure_ascii=False, default=str).translate(_ESCAPED) + "\n")
        stream.flush()


@contextmanager
def leaving_reader(stream: TextIO) -> Iterator[None]:
    """The reader of `stream` may go (`| head`): that is no error, and what is written from then on goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def shown(value: Any) -> str:
    """A cell: nothing for None, two decimals for a float."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def moment(at: float) -> str:
    """Seconds since the epoch as local time, `2026-11-30 18:05`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """`text` for a terminal, which obeys control characters: no prompt and no model shall move its cursor."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def excerpt(text: str, width: int) -> str:
    """One printable line of at most `width` characters from the start of `text`."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1] + "…"


def duration(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 20 s` or `5 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
