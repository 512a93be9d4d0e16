"""What a run leaves behind: what was accepted, what the ledger says of it, and what the processes wrote down."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Accepted:
    """A request as it was handed in. text: its one right answer. deadly: it kills whoever runs it. failing: memory
    runs out whenever it runs.

    expires_at: the deadline of its batch, in seconds since the epoch; None = there is none.
    """

    request_id: str
    batch_id: str
    text: str
    deadly: bool = False
    overdue: bool = False
    expires_at: float | None = None
    failing: bool = False


@dataclass(frozen=True)
class Row:
    """A request in the ledger, with its result. kinds: of its events, in the ledger's order."""

    request_id: str
    state: str
    results: int
    text: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    worker: str | None = None
    attempt: int | None = None
    events: tuple[tuple[str, str, int], ...] = ()
    """(kind, worker, attempt)"""
    finished_at: float | None = None


@dataclass(frozen=True)
class BatchRow:
    batch_id: str
    state: str
    total: int
    counts: dict[str, int]


@dataclass(frozen=True)
class Note:
    """A line of a process's own log. at: seconds since the epoch. kind:

    asks (whether a generation may start), start, end (a generation), kill (this process, at `phase`), recorded (a
    result is committed), death (a process, noted by the runner), stop (a process, by SIGSTOP), wipe (Redis lost its
    data), outage and outage_over (of the process "server", or of all "workers").
    """

    at: float
    kind: str
    process: str
    request_id: str | None = None
    phase: str | None = None


@dataclass
class History:
    accepted: dict[str, Accepted] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    batches: dict[str, BatchRow] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    longest_fault: float = 3.0
    """Seconds for which one fault may keep a process, or the server, from what it should do."""

    def of_kind(self, *kinds: str) -> list[Note]:
        return [note for note in self.notes if note.kind in kinds]


def notes_in(paths: Iterable[Path]) -> list[Note]:
    """The lines of all logs by time; one that its writer's death has cut short says nothing."""
    found: list[Note] = []
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                fields: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            found.append(Note(**fields))
    return sorted(found, key=lambda note: note.at)
