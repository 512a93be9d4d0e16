"""Calls in a child process, for what may end or hang its process: the caller goes on, and is told in words.

The child is `python -m kernels.child`, with one end of a socket pair; functions, arguments and results cross by pickle.
It greets once MLX computes in it: what keeps it from that is no matter of a call. A child is done after a call that
failed, whose device may be left in any state; the next call starts another.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import IO, Any, TypeVar

import mlx.core as mx

from kernels.words import in_words, says_another_failed, says_no_memory

Result = TypeVar("Result")

START_SECONDS = 120.0
"""That a child may take until it greets: a busy machine, and a driver that starts with it, are slow."""
GRACE_SECONDS = 5
"""How long a killed child may take to go. One that the driver holds longer is left behind."""
FROM_OUTSIDE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


class ChildError(Exception):
    """The call gave no result. The message says what became of it."""


class NoAnswerError(ChildError):
    """The call took too long."""


class InconclusiveError(ChildError):
    """Nothing is known of the call: there was no process for it, memory ran out, or somebody ended it."""


class Child:
    """The process that calls go to; it is started by the first one. `seconds`: that each call may take.

    Functions have to be those of a module, found by name; the child looks for modules where this process does.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._said: IO[bytes] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What the function returns. ChildError when it raises, ends its process or takes too long."""
        process, connection = self._running or self._started()
        try:
            connection.send((self._seconds, function, arguments))
            if not connection.poll(self._seconds):
                raise NoAnswerError(f"it gave no answer within {self._seconds:g} s")
            failure, result = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._death(process) from error
        except BaseException:
            self._end()
            raise
        if failure is not None:
            self._end()
            raise failure
        return result  # type: ignore[no-any-return]

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        """A new process, which has greeted."""
        try:
            process, connection = self._new()
        except OSError as error:
            self._end()
            raise InconclusiveError(f"there is no process to call it in: {in_words(error)}") from error
        try:
            if not connection.poll(START_SECONDS):
                raise InconclusiveError(f"its process did not start within {START_SECONDS:g} s")
            connection.recv()
        except (EOFError, ConnectionError) as error:
            raise InconclusiveError(f"before it was called, {self._death(process)}") from error
        except BaseException:
            self._end()
            raise
        return process, connection

    def _new(self) -> tuple[subprocess.Popen[bytes], Connection]:
        own, others = multiprocessing.Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed when the child is)
        with others:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kernels.child", str(others.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[others.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # what a terminal sends is for this process, which ends the child
            )
        self._running = process, own
        return self._running

    def _death(self, process: subprocess.Popen[bytes]) -> ChildError:
        """What a child that closed its end died of."""
        try:
            status = process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        last_words = self._last_words()
        self._end()
        if status is None:
            return _failure(f"its process closed the connection and stayed{last_words}")
        if status < 0:
            ended = f"{signal.Signals(-status).name} ended its process{last_words}"
            return InconclusiveError(ended) if -status in FROM_OUTSIDE else _failure(ended)
        return _failure(f"its process ended with status {status}{last_words}")

    def _last_words(self) -> str:
        assert self._said is not None
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4096))
        lines = self._said.read().decode("utf-8", "replace").split("\n")
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")

    def _end(self) -> None:
        if self._running is not None:
            process, connection = self._running
            connection.close()
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            self._running = None
        if self._said is not None:
            self._said.close()
            self._said = None


def _failure(complaint: str) -> ChildError:
    passes = says_no_memory(complaint) or says_another_failed(complaint)
    return InconclusiveError(complaint) if passes else ChildError(complaint)


def serve(descriptor: int) -> None:
    """Greets, and answers calls, each with a pair of what failed and the result, until the caller hangs up."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(ceil(START_SECONDS) + GRACE_SECONDS)  # ends a process that hangs when its caller is gone
    with Connection(descriptor) as connection:
        mx.eval(mx.zeros(8) + 1)
        connection.send(None)
        signal.alarm(0)
        while True:
            try:
                call = connection.recv_bytes()
            except EOFError:
                return
            connection.send(_answer(call))


def _answer(call: bytes) -> tuple[ChildError | None, Any]:
    try:
        seconds, function, arguments = pickle.loads(call)
        signal.alarm(ceil(seconds) + GRACE_SECONDS)
        return None, function(*arguments)
    except (MemoryError, ImportError) as error:
        return InconclusiveError(in_words(error)), None
    except (RuntimeError, ValueError, OSError) as error:  # MLX's, of a compiler's or a driver's complaint
        return _failure(in_words(error)), None
    finally:
        signal.alarm(0)


def _by_name(dtype: mx.Dtype) -> tuple[Callable[..., Any], tuple[str]]:
    return _dtype, (str(dtype).removeprefix("mlx.core."),)


def _dtype(name: str) -> mx.Dtype:
    return getattr(mx, name)  # type: ignore[no-any-return]


ForkingPickler.register(mx.Dtype, _by_name)  # MLX's types cannot be pickled

if __name__ == "__main__":
    from kernels.child import serve as serve_by_name  # what crosses by pickle is named by module, not __main__

    serve_by_name(int(sys.argv[1]))
