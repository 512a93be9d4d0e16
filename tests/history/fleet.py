"""The processes of a run: a real server, workers and recorders that are started again when they die."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis, exceptions

from api.errors import QueueError
from api.queue.connection import connect
from api.queue.server import PrivateServer
from tests.history.control import Journal

REPOSITORY = Path(__file__).parents[2]
MODEL = "scripted"
POLL_SECONDS = 0.02
RESTART_SECONDS = 0.3
"""How long a dead process stays dead, as a service manager would have it."""


@dataclass(frozen=True)
class Sizes:
    """What differs between a run in CI and a long one. Times in seconds."""

    workers: int = 4
    lease: float = 2.0
    heartbeat: float = 0.5
    housekeeping: float = 1.0
    settling: float = 3.5
    seconds_per_token: float = 0.02
    batch: int = 60
    backlog: int = 180
    """Requests handed in at a time, while fewer than this are open or, of a backlog of 0, while none waits."""
    look: float = 0.25
    """Between two batches at least."""


class Process:
    """A process that is started again when it dies, each time under another name."""

    def __init__(self, start: Callable[[int], tuple[str, "subprocess.Popen[bytes]"]], journal: Journal) -> None:
        self._start, self._journal = start, journal
        self._number = 0
        self.respawn()

    def respawn(self) -> None:
        self._dead_since: float | None = None
        self.continue_at: float | None = None
        self.name, self.popen = self._start(self._number)
        self._number += 1

    def tend(self) -> None:
        """Wake it when its stop is over; start it again a while after its death."""
        now = time.monotonic()
        if self.popen.poll() is None:
            if self.continue_at is not None and now >= self.continue_at:
                self.wake()
        elif self._dead_since is None:
            self._dead_since = now
            self._journal.note("death", process=self.name)
        elif now - self._dead_since > RESTART_SECONDS:
            self.respawn()

    def stop(self, seconds: float) -> None:
        if self.popen.poll() is None and self.continue_at is None:
            self._journal.note("stop", process=self.name)
            self.popen.send_signal(signal.SIGSTOP)
            self.continue_at = time.monotonic() + seconds

    def wake(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
        self.continue_at = None

    def terminate(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()

    def end(self, patience_seconds: float = 20) -> None:
        self.wake()
        self.terminate()
        try:
            self.popen.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Fleet:
    """Everything that runs, in one folder."""

    def __init__(self, folder: Path, sizes: Sizes, journal: Journal) -> None:
        self.sizes, self._journal = sizes, journal
        self.data_dir, self.control, self.journals = folder / "data", folder / "control", folder / "journals"
        self._logs = folder / "logs"
        for made in (self.data_dir, self.control, self.journals, self._logs):
            made.mkdir(parents=True, exist_ok=True)
        self.workers: list[Process] = []
        self.recorders: list[Process] = []
        self._asleep = False
        self.server: PrivateServer

    def start(self) -> None:
        """Start the server, a recorder and the workers. Whatever becomes of it, `close` ends what runs."""
        self._outage()  # there was none before: its first start counts as that of any other
        self.start_server()
        self.server_is_back()
        self.add_recorder()
        for slot in range(self.sizes.workers):
            self.workers.append(Process(self._worker(slot), self._journal))

    def settings(self) -> dict[str, Any]:
        return {
            "redis_url": self.server.url,
            "data_dir": str(self.data_dir),
            "model": MODEL,
            "lease_seconds": self.sizes.lease,
            "heartbeat_seconds": self.sizes.heartbeat,
            "deaths_in_a_row": 0,  # all workers share this machine, and their killer
        }

    def connect(self) -> Redis:
        return connect(self.server.url, patience_seconds=5)

    def tend(self) -> None:
        for process in (*self.workers, *self.recorders):
            process.tend()
        asleep = all(worker.continue_at is not None or worker.popen.poll() is not None for worker in self.workers)
        if asleep is not self._asleep:
            self._asleep = asleep
            self._journal.note("outage" if asleep else "outage_over", process="workers")

    def set_trap(self, name: str, phase: str) -> None:
        draft = self.control / f"{name}.draft"
        draft.write_text(phase)
        draft.replace(self.control / f"kill-{name}")

    def add_recorder(self) -> None:
        self.recorders.append(Process(self._recorder(len(self.recorders)), self._journal))

    def remove_recorder(self) -> None:
        self.recorders.pop().end()

    def kill_server(self) -> None:
        self._outage()
        os.kill(self.server.pid, signal.SIGKILL)
        if self.server._process is not None:
            self.server._process.wait(10)
        while self.server.alive():
            time.sleep(POLL_SECONDS)

    def wipe(self) -> None:
        """Lose what the dead server had on its disk."""
        self._journal.note("wipe")
        for path in (self.data_dir / "redis").rglob("appendonly*"):
            if path.is_file():
                path.unlink()

    def start_server(self) -> None:
        self.server = PrivateServer.start(self.data_dir)

    def _outage(self) -> None:
        self._journal.note("outage", process="server")

    def server_is_back(self) -> None:
        self._journal.note("outage_over", process="server")

    def hang_server(self) -> None:
        self._outage()
        os.kill(self.server.pid, signal.SIGSTOP)

    def wake_server(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def pause_server(self, seconds: float) -> None:
        self._outage()
        with self.connect() as redis:
            redis.client_pause(round(seconds * 1000), all=True)

    def calm(self) -> None:
        """No more faults: what is stopped goes on, what is set is taken away."""
        for path in self.control.iterdir():
            path.unlink(missing_ok=True)
        for process in (*self.workers, *self.recorders):
            process.wake()

    def close(self) -> None:
        self.calm()
        server = getattr(self, "server", None)
        if server is not None:
            with suppress(ProcessLookupError):
                self.wake_server()
        for process in (*self.workers, *self.recorders):
            process.terminate()
        for process in (*self.workers, *self.recorders):
            process.end()
        try:
            if server is not None:
                server.stop()
        except (exceptions.RedisError, QueueError):
            os.kill(server.pid, signal.SIGKILL)

    def _worker(self, slot: int) -> Callable[[int], tuple[str, "subprocess.Popen[bytes]"]]:
        def start(number: int) -> tuple[str, "subprocess.Popen[bytes]"]:
            name = f"w{slot}-{number}"
            station = self._station(name) | {"slot": slot, "seconds_per_token": self.sizes.seconds_per_token}
            arguments = {"grace_seconds": 0.2, "patience_seconds": 10.0}
            return name, self._spawn("worker_entry", name, self.settings(), station, arguments)

        return start

    def _recorder(self, slot: int) -> Callable[[int], tuple[str, "subprocess.Popen[bytes]"]]:
        def start(_: int) -> tuple[str, "subprocess.Popen[bytes]"]:
            name = f"recorder-{slot}"  # the same after a restart, as a coordinator's
            times = {"housekeeping_seconds": self.sizes.housekeeping, "settling_seconds": self.sizes.settling}
            return name, self._spawn("recorder_entry", name, self.settings(), self._station(name) | times)

        return start

    def _station(self, name: str) -> dict[str, Any]:
        return {"control": str(self.control), "journals": str(self.journals), "name": name}

    def _spawn(self, module: str, name: str, *arguments: dict[str, Any]) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", f"tests.history.{module}", *map(json.dumps, arguments)]
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
