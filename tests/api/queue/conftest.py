import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from api.queue.connection import connect
from api.queue.requests import RequestQueue
from api.queue.server import PrivateServer


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for sockets; pytest's own are too deep for one."""
    folder = tempfile.mkdtemp(prefix="cm-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(runtime_dir: Path, tmp_path: Path) -> Iterator[PrivateServer]:
    started = PrivateServer.start(tmp_path / "data")
    yield started
    if started.alive():
        started.stop()


@pytest.fixture
def redis(server: PrivateServer) -> Redis:
    return connect(server.url)


@pytest.fixture
def queue(redis: Redis) -> RequestQueue:
    return RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
