"""Where the bytes of a dataset come from: a file, or standard input spooled so that it can be read twice."""

import hashlib
import shutil
import sys
import tempfile
from functools import cache
from io import BufferedReader
from pathlib import Path

from api.errors import InputError

STANDARD_INPUT = Path("-")


def shown(path: Path) -> str:
    """The name of a dataset in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def open_source(path: Path) -> BufferedReader:
    """The dataset's bytes from the start. Raises InputError for a file that is missing or unreadable."""
    if path == STANDARD_INPUT:
        return open(_spooled_standard_input(), "rb")
    try:
        return open(path, "rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """The sentence for a file that the system does not let us read."""
    return InputError(f"{shown(path)}: cannot be read: {error.strerror or error}")


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of the dataset's bytes."""
    with open_source(path) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(path, error) from error


@cache
def _spooled_standard_input() -> str:
    return _spool().name


@cache
def _spool() -> "tempfile._TemporaryFileWrapper[bytes]":
    """Kept for the life of the process: the file goes away with it."""
    spool = tempfile.NamedTemporaryFile(prefix="cidermill-stdin-")  # noqa: SIM115
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.flush()
    return spool
