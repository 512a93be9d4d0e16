"""Finished results on this machine's own disk until Redis has them.

A generation can cost an hour of GPU time and its result can be ready while Redis is away, so it is stored first, then
published, then deleted. What a dead worker left is published by the next one that starts on the machine. A crash
between publishing and deleting publishes twice; the ledger keeps the first.
"""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError
from redis import Redis

from api.errors import StorageError
from api.queue.results import publish_result
from api.schemas import RequestEvent

logger = logging.getLogger("cidermill.worker")

PATTERN = "outbox-*.sqlite3"


class Outbox:
    """The stored events of one worker. The file exists for as long as the worker, or what it left, does."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError when the file cannot be made."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._database = _open(path)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"outbox {path} cannot be used: {error}") from error

    def store(self, event: RequestEvent) -> None:
        """Put the event on the disk; it is there when this returns. Raises StorageError."""
        try:
            with self._database:
                self._database.execute("INSERT INTO outbox (event) VALUES (?)", (event.model_dump_json(),))
        except sqlite3.Error as error:
            raise StorageError(f"a result cannot be stored in {self.path}: {error}") from error

    def deliver(self, connection: Redis) -> list[str]:
        """Publish and delete everything stored, oldest first; returns the request ids.

        Raises redis.exceptions.ConnectionError or TimeoutError; the rest stays for the next time.
        """
        return _deliver(self._database, connection)

    def close(self) -> None:
        """Close, and remove the file when nothing is left in it."""
        left = self._database.execute("SELECT count(*) FROM outbox").fetchone()[0]
        self._database.close()
        if not left:
            self.path.unlink(missing_ok=True)
            _lock_path(self.path).unlink(missing_ok=True)
        os.close(self._lock)


def deliver_leftovers(folder: Path, connection: Redis) -> list[str]:
    """Publish what workers that are dead have left in `folder`; returns the request ids."""
    delivered: list[str] = []
    for path in sorted(folder.glob(PATTERN)):
        with _adopted(path) as ours:
            if ours:
                delivered += _deliver_file(path, connection)
    return delivered


def _deliver_file(path: Path, connection: Redis) -> list[str]:
    try:
        database = _open(path)
        try:
            delivered = _deliver(database, connection)
        finally:
            database.close()
    except sqlite3.Error as error:
        logger.error("outbox %s of an earlier worker cannot be read and stays: %s", path, error)
        return []
    path.unlink()
    _lock_path(path).unlink(missing_ok=True)
    return delivered


def _deliver(database: sqlite3.Connection, connection: Redis) -> list[str]:
    # A deletion that a power cut undoes publishes twice, which does no harm: it need not wait for the disk.
    database.execute("PRAGMA synchronous = NORMAL")
    try:
        return _publish_all(database, connection)
    finally:
        database.execute("PRAGMA synchronous = FULL")


def _publish_all(database: sqlite3.Connection, connection: Redis) -> list[str]:
    delivered = []
    for number, text in database.execute("SELECT id, event FROM outbox ORDER BY id").fetchall():
        try:
            event = RequestEvent.model_validate_json(text)
        except ValidationError:
            logger.error("entry %d of an outbox is not an event of this version; dropped", number)
        else:
            publish_result(connection, event)
            delivered.append(event.request_id)
        with database:
            database.execute("DELETE FROM outbox WHERE id = ?", (number,))
    return delivered


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # results are for their owner's eyes
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone leaves it in the drive's cache
    database.execute("CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, event TEXT NOT NULL)")
    return database


@contextmanager
def _adopted(path: Path) -> Iterator[bool]:
    """Whether the worker of that outbox is dead, and nobody else is at its leavings."""
    descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path.exists()
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")
