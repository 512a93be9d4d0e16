"""What tests of the queue's contract run on: a real server, and fakeredis held to the same tests.

Where the two differ the server counts. What the imitation has to add to fakeredis is in `Imitation`, and the tests of
tests/api/queue/test_fakeredis.py hold as long as it is missing there. A test that fakeredis fails says so by
`differs(reason)`: it runs there all the same, and is in error as soon as it passes.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fakeredis import FakeServer, FakeStrictRedis
from redis import Redis, exceptions

from api.queue.connection import connect
from api.queue.server import PrivateServer

BACKENDS = ("server", "fakeredis")


class Imitation(FakeStrictRedis):
    """fakeredis with INFO, by which leases know how long the server is up and RQ which commands it has."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"server": FakeServer(), "protocol": 2, **options})  # protocol: that of `connect`
        self._since = time.monotonic()

    def info(self, section: str | None = None, *more: str, **options: Any) -> dict[str, Any]:
        uptime = int(time.monotonic() - self._since)
        return {"redis_version": "7.0.0", "uptime_in_seconds": uptime, "run_id": f"{self._since}"}


def differs(reason: str, raises: type[Exception] = exceptions.ResponseError) -> pytest.MarkDecorator:
    """Marks a test that fakeredis fails by `raises`, for that reason."""
    return pytest.mark.differs(reason, raises)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """One server for all tests that only need an empty one."""
    runtime = tempfile.mkdtemp(prefix="cm-", dir="/tmp")  # pytest's own folders are too deep for a socket
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        server = PrivateServer.start(tmp_path_factory.mktemp("shared") / "data")
    yield server
    server.stop()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture(params=BACKENDS)
def redis(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """An empty Redis of either kind."""
    if request.param == "fakeredis":
        for mark in request.node.iter_markers("differs"):
            reason, raises = mark.args
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason, raises=raises))
        yield Imitation()
        return
    server: PrivateServer = request.getfixturevalue("shared_server")
    connection = connect(server.url)
    connection.flushall()
    yield connection
    connection.close()
