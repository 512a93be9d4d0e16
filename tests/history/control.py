"""How the runner reaches into its processes, and how these write down what they do: files in one folder each."""

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Journal:
    """A process's own log. A line is one write: a kill cuts none in two."""

    def __init__(self, path: Path, process: str) -> None:
        self._process = process
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(
        self,
        kind: str,
        request_id: str | None = None,
        *,
        process: str | None = None,
        phase: str | None = None,
        at: float | None = None,
    ) -> None:
        """at: when it happened, in seconds since the epoch; None: now."""
        line = {
            "at": time.time() if at is None else at,
            "kind": kind,
            "process": process or self._process,
            "request_id": request_id,
        }
        os.write(self._file, json.dumps(line | {"phase": phase}).encode() + b"\n")


class Trap:
    """Kills its own process at the point that the runner has written into a file."""

    def __init__(self, path: Path, journal: Journal) -> None:
        self._path, self._journal = path, journal

    def passes(self, phase: str, request_id: str | None) -> None:
        """Called at each point; returns unless the trap is set for this one."""
        try:
            wanted = self._path.read_text()
        except FileNotFoundError:
            return
        if wanted == phase:
            self._path.unlink(missing_ok=True)
            self.spring(phase, request_id)

    def spring(self, phase: str, request_id: str | None) -> None:
        self._journal.note("kill", request_id, phase=phase)
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def full_disk(switch: Path) -> Iterator[None]:
    """While the file `switch` exists, no file of this process may grow beyond its first KiB within the block."""
    if not switch.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
