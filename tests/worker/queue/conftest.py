import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, exceptions

from api.queue.connection import connect
from api.queue.requests import RequestQueue
from api.queue.results import ResultsReader, publish
from api.queue.server import PrivateServer
from api.schemas import GenerationRequest, RequestEvent
from api.settings import Settings
from tests.queue_backends import redis, shared_server

__all__ = ["redis", "shared_server"]

REPOSITORY = Path(__file__).parents[3]
BATCH = "batch_01TEST"


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


class Station:
    """A private server, a queue, the stream of results, and worker processes to kill."""

    model = "scripted"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.engine_log = folder / "engine.log"
        self.server = PrivateServer.start(self.data_dir)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.events: list[RequestEvent] = []
        self._connect()

    def _connect(self) -> None:
        self.redis: Redis = connect(self.server.url, patience_seconds=5)
        self.queue = RequestQueue(self.redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
        self.reader = ResultsReader(self.redis, "test")

    def settings(self, **changes: Any) -> Settings:
        given = {"lease_seconds": 2, "heartbeat_seconds": 0.5, "request_timeout_seconds": 60, **changes}
        return Settings(redis_url=self.server.url, data_dir=self.data_dir, model=self.model, **given)

    def enqueue(self, *prompts: str, tokens: int = 4, first: int = 0, queue: RequestQueue | None = None) -> list[str]:
        requests = [
            GenerationRequest(request_id=f"{BATCH}-{index}", prompt=prompt, max_tokens=tokens)
            for index, prompt in enumerate(prompts, first)
        ]
        (queue or self.queue).enqueue(requests, model=self.model, priority="normal")
        return [request.request_id for request in requests]

    def tell_start(self, event: RequestEvent) -> bool:
        """That of a run without a lease."""
        publish(self.redis, event)
        return True

    def start_worker(
        self, seconds_per_token: float = 0.0, *, settings: dict[str, Any] | None = None, **arguments: Any
    ) -> "subprocess.Popen[bytes]":
        given = {
            "redis_url": self.server.url,
            "data_dir": str(self.data_dir),
            "model": self.model,
            "lease_seconds": 2,
            "heartbeat_seconds": 0.5,
            **(settings or {}),
        }
        command = [sys.executable, "-m", "tests.worker.queue.scripted_worker"]
        command += [json.dumps(given), json.dumps(arguments), str(seconds_per_token), str(self.engine_log)]
        log = (self.folder / f"worker-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        log.close()
        self.processes.append(process)
        return process

    def starts(self) -> list[tuple[str, int]]:
        """(request id, process id) of every generation that began."""
        lines = self.engine_log.read_text().splitlines() if self.engine_log.exists() else []
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    def pull(self) -> list[RequestEvent]:
        try:
            entries = self.reader.read(block_ms=20)
            self.reader.acknowledge([entry_id for entry_id, _ in entries])
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            return self.events
        self.events += [event for _, event in entries if event is not None]
        return self.events

    def finished(self) -> list[RequestEvent]:
        return [event for event in self.pull() if event.kind == "finished"]

    def wait_for_results(self, count: int, seconds: float = 20) -> list[RequestEvent]:
        wait_until(lambda: len(self.finished()) >= count, f"{count} results", seconds)
        return self.finished()

    def restart_server(self) -> None:
        self.server = PrivateServer.start(self.data_dir)

    def kill_server(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server._process.wait(10) if self.server._process else None
        wait_until(lambda: not self.server.alive(), "the server's death")

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("worker-*.log")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)
            if process.stdin is not None:
                process.stdin.close()
        if self.server.alive():
            self.server.stop()


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Station]:
    runtime = tempfile.mkdtemp(prefix="cm-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("CIDERMILL_CONFIG", str(tmp_path / "none.toml"))
    found = Station(tmp_path)
    yield found
    found.close()
    shutil.rmtree(runtime, ignore_errors=True)
