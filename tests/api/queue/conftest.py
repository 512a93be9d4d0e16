import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from api.queue.requests import RequestQueue
from api.queue.server import PrivateServer
from tests.queue_backends import redis, shared_server

__all__ = ["redis", "shared_server"]


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for sockets; pytest's own are too deep for one."""
    folder = tempfile.mkdtemp(prefix="cm-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(runtime_dir: Path, tmp_path: Path) -> Iterator[PrivateServer]:
    """A server of this test alone, to stop and to kill."""
    started = PrivateServer.start(tmp_path / "data")
    yield started
    if started.alive():
        started.stop()


@pytest.fixture
def queue(redis: Redis) -> RequestQueue:
    return RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
