"""What SQLite refuses, as one sentence that names the ledger and the way out."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from api.errors import CidermillError, LedgerError, StorageError, UnstorableError

_OF_CONTENT = ("SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG")
"""SQLITE_ERROR is, among others, a sum that is no integer any more."""


@contextmanager
def ledger_errors(path: Path) -> Iterator[None]:
    """Turn errors of the database into LedgerError, or StorageError for a disk that is full.

    UnstorableError where it may be for what was to be written.
    """
    try:
        yield
    except DBAPIError as error:
        raise explained(path, error.orig) from error
    except sqlite3.Error as error:
        raise explained(path, error) from error
    except OverflowError as error:  # of the driver, before SQLite sees the value
        raise UnstorableError(f"ledger {path} failed: {error}") from error


def explained(path: Path, error: BaseException | None) -> CidermillError:
    """The sentence for an error of the sqlite3 driver."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return StorageError(f"ledger {path} cannot grow: the disk is full; free space and try again")
    if name.startswith("SQLITE_IOERR"):
        return StorageError(f"ledger {path} cannot be read or written ({name}): check the disk and the space on it")
    if name.startswith(_OF_CONTENT):
        return UnstorableError(f"ledger {path} failed: {error}")
    return LedgerError(_sentence(path, name) or f"ledger {path} failed: {error}")


def _sentence(path: Path, name: str) -> str | None:
    if name == "SQLITE_NOTADB":
        return f"{path} is not a ledger: it is not an SQLite database; move it away or choose another data_dir"
    if name.startswith("SQLITE_CORRUPT"):
        return f"ledger {path} is damaged; rescue it with `sqlite3 {path} .recover` or put a backup in its place"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return f"ledger {path} cannot be written: no permission for the file or its folder"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"ledger {path} is locked by another process; try again when that has finished"
    return None
