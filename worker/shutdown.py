"""How a worker is asked to stop.

Drained: finish the running request, however long it takes.
First SIGTERM or SIGINT: finish the running request within the grace, else hand it back. Second: hand it back at once.
Third: die on the spot; the request goes to another worker when the lease ends, at the price of an attempt.
"""

import os
import signal
import threading
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """A request to stop, made by a signal, by the end of the parent, or by another thread."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._asked = threading.Event()
        self._hand_back_at: float | None = None

    def drain(self) -> None:
        """Stop when the running request is finished."""
        self._asked.set()

    @property
    def draining(self) -> bool:
        """Whether there is all the time that the running request takes."""
        return self.requested and self._hand_back_at is None

    @property
    def requested(self) -> bool:
        return self._asked.is_set()

    def request(self) -> None:
        """Stop soon; asked a second time, at once."""
        if self._hand_back_at is None:
            self._hand_back_at = time.monotonic() + self._grace_seconds
        else:
            self._hand_back_at = time.monotonic()
        self._asked.set()

    def hand_back_due(self) -> bool:
        """Whether the running request should go back to its queue now."""
        return self._hand_back_at is not None and time.monotonic() >= self._hand_back_at

    def wait(self, seconds: float) -> bool:
        """Sleep until asked to stop, at most `seconds`; returns whether asked."""
        return self._asked.wait(seconds)

    def on_signals(self) -> None:
        """Listen to SIGTERM and SIGINT (main thread only)."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def on_end_of(self, descriptor: int) -> None:
        """Count the end of the pipe `descriptor` as a signal: the process at its other end is gone."""
        threading.Thread(target=self._await_end, args=(descriptor,), name="parent", daemon=True).start()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._hand_back_at is not None:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
        self.request()

    def _await_end(self, descriptor: int) -> None:
        # os.read and not sys.stdin: a daemon thread inside a buffered read aborts the interpreter's exit.
        while os.read(descriptor, 4096):
            pass
        self.request()
