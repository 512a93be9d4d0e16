"""Output is whole or absent: full disks, missing folders, interrupted writers, devices."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api.dataset.writer import write_errors, write_results
from api.errors import StorageError

Make = Callable[..., Any]

# The writer of a file of 1 MB, in a process whose files may hold 64 KiB: the system refuses as on a full disk.
FULL_DISK = """
import resource, sys
from pathlib import Path
from api.dataset.reader import LineError
from api.dataset.writer import write_errors
from api.errors import StorageError
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    write_errors((LineError(n, "code", "x" * 1000, None) for n in range(1000)), Path(sys.argv[1]))
except StorageError as error:
    print(error.exit_code.value, error)
"""


@pytest.mark.parametrize("before", [None, b"earlier results\n"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_done(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "out.jsonl"
    if before is not None:
        path.write_bytes(before)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, check=True, text=True, timeout=60
    )
    assert done.stdout == (
        f"7 {path}: cannot be written: File too large; nothing was changed, give another path or make room\n"
    )
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == (
        {} if before is None else {"out.jsonl": before}
    )


@pytest.mark.parametrize("fmt", ["openai", "csv", "parquet"])
def test_an_interrupted_writer_leaves_what_was_there(tmp_path: Path, completed: Make, fmt: Any) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before")

    def interrupted() -> Iterator[Any]:
        yield completed()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_results(interrupted(), path, fmt)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("out", b"before")]


def test_the_file_appears_only_when_it_is_whole(tmp_path: Path, completed: Make) -> None:
    path = tmp_path / "out.jsonl"

    def watched() -> Iterator[Any]:
        yield completed(0)
        assert not path.exists()
        yield completed(1)

    assert write_results(watched(), path, "openai") == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_missing_folder_and_a_folder_as_path_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"out\.jsonl: cannot be written: there is no folder .*/gone$"):
        write_results([], tmp_path / "gone" / "out.jsonl", "openai")
    with pytest.raises(StorageError, match="cannot be written: Is a directory"):
        write_results([], tmp_path, "openai")


def test_a_link_is_written_through_and_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.jsonl"
    link.symlink_to(tmp_path / "real" / "results.jsonl")
    mask = os.umask(0o027)
    try:
        write_errors([], link)
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert stat.S_IMODE((tmp_path / "real" / "results.jsonl").stat().st_mode) == 0o640


def test_a_device_is_written_not_replaced() -> None:
    assert write_results([], Path("/dev/null"), "openai") == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
