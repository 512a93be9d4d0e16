"""Ctrl-C as an exception of our own: the command line framework would turn a KeyboardInterrupt into exit code 1."""

import signal
from types import FrameType


class Interrupted(BaseException):
    """The user has pressed Ctrl-C, or somebody has sent SIGTERM."""


def raise_on_signals() -> None:
    """Raise Interrupted in the main thread at SIGINT and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted
