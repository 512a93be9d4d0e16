"""A data directory of its own, and the commands that run in it as real processes."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from api.queue.server import PrivateServer

CIDERMILL = [sys.executable, "-m", "cli.main"]
Row = dict[str, Any]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 40) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def json_lines(text: str) -> list[Row]:
    return [json.loads(line) for line in text.splitlines()]


class Command:
    """One command that is running, its output going to files."""

    def __init__(self, process: "subprocess.Popen[bytes]", stdout: Path, stderr: Path) -> None:
        self.process, self._stdout, self._stderr = process, stdout, stderr
        self.pid = process.pid

    @property
    def stdout(self) -> str:
        return self._stdout.read_text("utf-8")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text("utf-8")

    def wait(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.poll() is None, f"it has ended already: {self.stderr}"
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def children(self) -> dict[str, int]:
        """The pids of its worker and its private server, when both are up."""
        found = {}
        for child in psutil.Process(self.pid).children():
            command = child.cmdline()
            found["worker" if "worker" in command else "server"] = child.pid
        return found if len(found) == 2 else {}


class Mill:
    """`redis_url`: given to every command through its environment; None: each `run` has a private server."""

    def __init__(self, folder: Path, runtime: Path, model: Path, profiles: Path | None = None) -> None:
        self.folder, self.model = folder, str(model)
        self.data_dir = folder / "data"
        self.commands: list[Command] = []
        self.server: PrivateServer | None = None
        home = folder / "home"
        home.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(runtime),
            "HF_HUB_OFFLINE": "1",
            "CIDERMILL_DATA_DIR": str(self.data_dir),
            "CIDERMILL_MODEL": self.model,
            # A dead worker's request need not wait long here.
            "CIDERMILL_LEASE_SECONDS": "2",
            "CIDERMILL_HEARTBEAT_SECONDS": "0.5",
        }
        if profiles is not None:
            self.data_dir.mkdir()
            (self.data_dir / "profiles").symlink_to(profiles)

    # Commands.

    def run(
        self, *arguments: object, stdin: bytes = b"", seconds: float = 60, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end. options: env adds to the environment, the others are those of subprocess.run."""
        environment = self.environment | options.pop("env", {})
        options.setdefault("cwd", self.folder)
        found = subprocess.run(
            [*CIDERMILL, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
            **options,
        )
        return subprocess.CompletedProcess(
            found.args, found.returncode, found.stdout.decode("utf-8"), found.stderr.decode("utf-8")
        )

    def start(self, *arguments: object, stdin: int = subprocess.DEVNULL) -> Command:
        number = len(self.commands)
        stdout, stderr = self.folder / f"{number}.out", self.folder / f"{number}.err"
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                [*CIDERMILL, *map(str, arguments)],
                stdin=stdin,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=self.environment,
            )
        self.commands.append(Command(process, stdout, stderr))
        return self.commands[-1]

    def input(self, lines: Sequence[Row], name: str = "in.jsonl") -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        return path

    # A fleet: one server that outlives the commands.

    def start_redis(self) -> str:
        self.server = PrivateServer.start(self.folder / "fleet")
        self.environment["CIDERMILL_REDIS_URL"] = self.server.url
        return self.server.url

    # What the ledger says, read without cidermill's own code.

    def ask(self, query: str, *parameters: object) -> list[Row]:
        path = self.data_dir / "ledger.sqlite3"
        if not path.exists():
            return []
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(query, parameters)]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # the command is about to make them
                return []
            raise
        finally:
            connection.close()

    def requests(self) -> list[Row]:
        """Requests with their results, NULL where there is none, in the order in which they were entered."""
        query = (
            "SELECT requests.*, results.* FROM requests LEFT JOIN results ON results.request_id = requests.id "
            "ORDER BY requests.rowid"
        )
        return self.ask(query)

    def batches(self) -> list[Row]:
        return self.ask("SELECT * FROM batches ORDER BY created_at")

    def events(self, request_id: str) -> list[str]:
        rows = self.ask("SELECT kind FROM events WHERE request_id = ? ORDER BY id", request_id)
        return [row["kind"] for row in rows]

    def wait_for_state(self, index: int, *states: str) -> Row:
        """The request at `index` once it is in one of `states`."""

        def found() -> Row | None:
            rows = self.requests()
            return rows[index] if index < len(rows) and rows[index]["state"] in states else None

        row: Row = wait_until(found, f"request {index} to be {' or '.join(states)}")
        return row

    # The end.

    def workers(self) -> list[psutil.Process]:
        """Every process that works for this data directory: found by its environment, whoever started it."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("CIDERMILL_DATA_DIR") == str(self.data_dir)
                if ours and "worker" in process.cmdline():
                    found.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def close(self) -> None:
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
            command.wait(10)
            if command.process.stdin is not None:
                command.process.stdin.close()
        for worker in self.workers():
            worker.kill()
        for server in (self.server, PrivateServer.running(self.data_dir)):
            if server is not None and server.alive():
                server.stop()


MillAt = Callable[..., Mill]
"""What the fixture `mill_at` is: makes a mill, given the profiles of an engine that has measured before."""
