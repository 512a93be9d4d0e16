"""Finished results on this machine's own disk until Redis has them.

A generation can cost an hour of GPU time and its result can be ready while Redis is away, so it is stored first, then
published, then deleted. What a dead worker left is published by the next one that starts on the machine. A crash
between publishing and deleting publishes twice, and so does a row that cannot be deleted; the ledger keeps the first.
"""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

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
            self._rows = _Rows(path)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"outbox {path} cannot be used: {error}") from error

    def store(self, event: RequestEvent) -> None:
        """Put the event on the disk; it is there when this returns. Raises StorageError."""
        try:
            self._rows.add(event)
        except sqlite3.Error as error:
            raise StorageError(f"a result cannot be stored in {self.path}: {error}") from error

    def deliver(self, connection: Redis) -> list[str]:
        """Publish and delete everything stored, oldest first; returns the request ids.

        What cannot be deleted is published all the same, and passed over from then on. Raises StorageError when the
        file cannot be read, and Redis's errors; the rest stays for the next time.
        """
        try:
            return self._rows.deliver(connection)
        except sqlite3.Error as error:
            raise StorageError(f"outbox {self.path} cannot be read: {error}") from error

    def close(self) -> None:
        """Close, and remove the file when nothing is left in it that was not published."""
        try:
            left = self._rows.left()
        except sqlite3.Error as error:
            logger.error("outbox %s cannot be read and stays: %s", self.path, error)
            left = True
        self._rows.close()
        if not left:
            self.path.unlink(missing_ok=True)
            _lock_path(self.path).unlink(missing_ok=True)
        os.close(self._lock)


class _Rows:
    """The rows of an open file. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = _open(path)
        self._published = 0
        """The last row that was published and could not be deleted; those before it were published, too."""

    def add(self, event: RequestEvent) -> None:
        with self._database:
            added = self._database.execute("INSERT INTO outbox (event) VALUES (?)", (event.model_dump_json(),))
        # The number may be one that went after all.
        self._published = min(self._published, cast(int, added.lastrowid) - 1)

    def deliver(self, connection: Redis) -> list[str]:
        # A deletion that a power cut undoes publishes twice, which does no harm: it need not wait for the disk.
        self._database.execute("PRAGMA synchronous = NORMAL")
        try:
            return self._publish_all(connection)
        finally:
            self._database.execute("PRAGMA synchronous = FULL")

    def left(self) -> bool:
        """Whether there is something that was not published."""
        query = "SELECT count(*) FROM outbox WHERE id > ?"
        return bool(self._database.execute(query, (self._published,)).fetchone()[0])

    def close(self) -> None:
        self._database.close()

    def _publish_all(self, connection: Redis) -> list[str]:
        delivered = []
        query = "SELECT id, event FROM outbox WHERE id > ? ORDER BY id"
        for number, text in self._database.execute(query, (self._published,)).fetchall():
            try:
                event = RequestEvent.model_validate_json(text)
            except ValidationError:
                logger.error("entry %d of an outbox is not an event of this version; dropped", number)
            else:
                publish_result(connection, event)
                delivered.append(event.request_id)
            self._delete(number)
        return delivered

    def _delete(self, number: int) -> None:
        try:
            with self._database:
                self._database.execute("DELETE FROM outbox WHERE id = ?", (number,))
        except sqlite3.Error as error:
            logger.error("entry %d of outbox %s is published and cannot be deleted: %s", number, self._path, error)
            self._published = number


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
        rows = _Rows(path)
        try:
            delivered = rows.deliver(connection)
        finally:
            rows.close()
    except sqlite3.Error as error:
        logger.error("outbox %s of an earlier worker cannot be read and stays: %s", path, error)
        return []
    path.unlink()
    _lock_path(path).unlink(missing_ok=True)
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
