"""Output that is whole or absent: written beside its place, forced to disk, then renamed into it."""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from api.errors import StorageError


@contextmanager
def output(path: Path | None) -> Iterator[BinaryIO]:
    """A stream of bytes to `path`; None = standard output.

    A file appears only when the block ends well; on any error, what was there before is still there and nothing is
    left beside it. A device or a pipe is written directly. Raises StorageError when the system refuses.
    """
    try:
        if path is None:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif _is_special(path):
            with open(path, "wb") as stream:
                yield stream
        else:
            yield from _replacing(Path(os.path.realpath(path)))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(_refusal(path, error)) from error


def _is_special(path: Path) -> bool:
    """Whether the path is something that a rename must not replace, such as /dev/null."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _replacing(target: Path) -> Iterator[BinaryIO]:
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with open(beside, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(path: Path | None, error: OSError) -> str:
    name = "standard output" if path is None else str(path)
    if isinstance(error, FileNotFoundError) and path is not None:
        return f"{name}: cannot be written: there is no folder {path.parent}"
    return f"{name}: cannot be written: {error.strerror or error}; nothing was changed, give another path or make room"
