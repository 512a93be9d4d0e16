"""All tests in three processes and, beside them, three minutes of a fleet under faults: `python -m tests.side_by_side`.

The fleet mostly waits, so it takes little from the tests. The exit code is not 0 when either fails, and nothing that
either has started is left behind. Arguments go to pytest.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO

TESTS = ["-m", "pytest", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
"""Three processes for two cores: some tests compute, others wait. Order: tests/conftest.py."""
FAULTS = ["-m", "tests.history.run", "--seconds", "180", "--requests", "2000", "--seed", "1", "--every-fault"]
NICENESS = 5
"""Of the fleet: it yields to the tests, and still renews its leases of 2 s."""
PATIENCE_SECONDS = 90
"""For a process that was asked to end what it has started."""


class Part:
    """A process in a session of its own: a signal that ends it reaches its children, and no signal of the terminal."""

    def __init__(self, arguments: list[str], end_with: signal.Signals, output: IO[bytes] | None = None) -> None:
        self._end_with = end_with
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait(self) -> int:
        return self._process.wait()

    def ask_to_end(self) -> None:
        if self._process.poll() is None:
            self._signal(self._end_with)

    def end(self) -> None:
        """Wait for what was asked to end; then kill what is left of its session."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def main(tests: list[str], faults: list[str]) -> int:
    """The exit code. tests, faults: arguments for Python."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell in the background ignores it
    parts: list[Part] = []
    with tempfile.TemporaryFile() as report:
        try:
            parts.append(Part(faults, signal.SIGTERM, report))
            os.setpriority(os.PRIO_PROCESS, parts[0].pid, NICENESS)
            parts.append(Part(tests, signal.SIGINT))
            codes = [part.wait() for part in reversed(parts)]
        except KeyboardInterrupt:
            codes = [130]
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            for part in parts:
                part.ask_to_end()
            for part in parts:
                part.end()
            report.seek(0)
            print(report.read().decode("utf-8", "replace"), flush=True)
    return max(code % 256 for code in codes)


if __name__ == "__main__":
    sys.exit(main([*TESTS, *sys.argv[1:]], FAULTS))
