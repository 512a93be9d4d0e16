"""How the ledger's SQLite file is opened: durable, many readers beside one writer, private to its owner."""

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event

from api.errors import CidermillError, LedgerError, StorageError
from api.ledger.failures import ledger_errors

BUSY_TIMEOUT_SECONDS = 30.0
WAL_KEPT_BYTES = 64 * 2**20
_RETRY_SECONDS = 0.02
_IMMEDIATE = "ledger_immediate"

_creation = threading.Lock()


def create_file(path: Path) -> None:
    """The empty file, mode 0600, in a folder of mode 0700, where they do not exist yet.

    SQLite gives its -wal and -shm files the mode of the file itself. Raises LedgerError, StorageError.

    A file that is there is never opened here: to close any descriptor of it would take away every lock that this
    process has on it (POSIX), SQLite's among them, and the next process to leave would remove the log under us.
    """
    try:
        if path.exists() and not path.is_file():
            raise LedgerError(f"{path} is not a ledger: it is not a regular file; choose another data_dir")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _creation, suppress(FileExistsError):  # no thread has a connection before the descriptor is closed
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _unopened(path, error) from error


def _unopened(path: Path, error: OSError) -> CidermillError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"ledger {path} cannot be created: the disk is full; free space and try again")
    return LedgerError(f"ledger {path} cannot be opened: {error.strerror}; choose another data_dir or mend its mode")


def open_engine(path: Path) -> Engine:
    """An engine whose transactions are what SQLite's own BEGIN means, on connections set up for durability."""
    engine = create_engine(URL.create("sqlite", database=str(path)))
    event.listen(engine, "connect", lambda connection, _record: _set_up(connection, path))
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def reading(engine: Engine, path: Path) -> Iterator[Connection]:
    """One consistent view; never waits for the writer."""
    with ledger_errors(path), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine, path: Path) -> Iterator[Connection]:
    """One transaction that holds the write lock from its start, so that what it reads is still true when it writes."""
    with ledger_errors(path), engine.execution_options(**{_IMMEDIATE: True}).begin() as connection:
        yield connection


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    connection.isolation_level = None  # the driver would otherwise begin transactions of its own, and too late
    connection.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_SECONDS * 1000)}")
    _use_wal(connection, path)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone leaves a commit in the drive's cache
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to WAL. SQLite does not wait for its lock here, whatever the busy timeout says, so this does."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if mode != "wal":
            raise LedgerError(f"ledger {path}: its disk cannot hold SQLite's write-ahead log; use a local disk")
        return


def _begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get(_IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
