"""The caller's side: one child process that runs kernels, started on demand, and anew after a kernel has killed it."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from kernels.host import child
from kernels.host.build import runtime_library


class KernelDied(Exception):
    """The child ended during a run. `site` is the latest place that the kernel is known to have passed, 0 if none."""

    def __init__(self, cause: str, site: int, timed_out: bool) -> None:
        super().__init__(cause)
        self.site = site
        self.timed_out = timed_out


class _Child:
    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self.owner = os.getpid()
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self.process = subprocess.Popen(
            [sys.executable, "-E", "-S", str(Path(child.__file__)), str(runtime)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def can_serve(self, runtime: Path) -> bool:
        return self.runtime == runtime and self.owner == os.getpid() and self.process.poll() is None

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        child.send(self.process.stdin, request)
        answer = child.receive(self.process.stdout)
        if answer is None:
            raise self._death()
        return dict(answer)

    def _death(self) -> KernelDied:
        status = self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace")
        if status == -signal.SIGPROF:
            return KernelDied("still running at the limit of cpu_seconds: an endless loop, or work for a GPU", 0, True)
        match = re.search(r"fault site=(\d+) thread=(\d+) threadgroup=(\d+) stack_overflow=(\d)", words)
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        if match is None:
            return KernelDied(f"the process ended with {name}: {words.strip()[-500:]}", 0, False)
        site, thread, threadgroup, overflow = map(int, match.groups())
        what = "its stack of 256 KiB is full" if overflow else f"it ends the process with {name}"
        return KernelDied(f"thread {thread} of threadgroup {threadgroup}: {what}, after this place", site, False)

    def stop(self) -> None:
        """Ends the process; the pipes of a child that was forked away from its owner are only forgotten."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.communicate()
        self.errors.close()


_child: _Child | None = None
_lock = threading.Lock()


def run_in_child(request: dict[str, Any]) -> dict[str, Any]:
    """One run; KernelDied if the kernel takes the process with it or does not end in time."""
    global _child
    runtime = runtime_library()
    with _lock:
        if _child is None or not _child.can_serve(runtime):
            _stop()
            _child = _Child(runtime)
        try:
            return _child.serve(request)
        except BaseException:  # an interrupt, too, would leave an answer in the pipe
            _stop()
            raise


def _stop() -> None:
    global _child
    stopping, _child = _child, None
    if stopping is not None:
        stopping.stop()


atexit.register(_stop)
