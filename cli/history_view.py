"""Events of requests, each shown as it comes: there can be millions of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cli.output import emit_json, leaving_reader, piped, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from api.ledger.records import HistoryEntry

LINE = "{at:<19}  {index:>7}  {kind:<11}  {attempt:>7}  {worker:<28}  {detail}"
HEADINGS = LINE.format(at="time", index="request", kind="event", attempt="attempt", worker="worker", detail="why")


def show_history(entries: Iterable[HistoryEntry]) -> None:
    """JSON lines in a pipe. On a terminal lines of a table, whose requests are the indices within their batch."""
    if piped():
        for entry in entries:
            emit_json(event_row(entry))
        return
    import sys

    with leaving_reader(sys.stdout):
        print(HEADINGS, flush=True)
        for entry in entries:
            print(_line(entry), flush=True)


def event_row(entry: HistoryEntry) -> dict[str, Any]:
    """at: seconds since the epoch. worker: None where none was concerned. attempt: 0 before the first."""
    return {
        "request_id": entry.request_id,
        "kind": entry.kind,
        "at": entry.at,
        "worker": entry.worker or None,
        "attempt": entry.attempt,
        "detail": entry.detail,
    }


def _line(entry: HistoryEntry) -> str:
    shown = {
        "at": _clock(entry.at),
        "index": entry.request_id.rpartition("-")[2],
        "kind": entry.kind,
        "attempt": entry.attempt or "",
        "worker": entry.worker,
        "detail": entry.detail or "",
    }
    return printable(LINE.format(**shown)).replace("\n", " ").rstrip()


def _clock(at: float) -> str:
    """Local time; as it is where no calendar has it: a worker's clock can say anything."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):
        return f"{at:g}"
