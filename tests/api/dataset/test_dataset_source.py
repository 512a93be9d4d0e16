"""Where bytes come from: files that are there or not, and standard input, read twice."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from api.dataset.reader import Dataset
from api.dataset.seen import SeenIds
from api.errors import InputError

READ_TWICE = """
from pathlib import Path
from api.dataset.reader import Dataset, validate
dataset = Dataset(Path("-"))
print(validate(dataset).total, [outcome.custom_id for outcome in dataset], dataset.sha256())
"""


def test_standard_input_can_be_read_twice() -> None:
    data = b'{"prompt":"a"}\r\n{"prompt":"b\xc3\xa9"}'
    done = subprocess.run(
        [sys.executable, "-c", READ_TWICE], input=data, capture_output=True, check=True, timeout=60, cwd=os.getcwd()
    )
    assert done.stdout.decode() == f"2 ['request-1', 'request-2'] {hashlib.sha256(data).hexdigest()}\n"


def test_sha256_is_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n")
    assert Dataset(path).sha256() == hashlib.sha256(b"\xef\xbb\xbfone\r\n").hexdigest()


@pytest.mark.parametrize("use", [list, Dataset.sha256])
def test_a_missing_file_and_a_folder_are_named(tmp_path: Path, use: Callable[[Dataset], object]) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl: cannot be read: No such file or directory$"):
        use(Dataset(tmp_path / "gone.jsonl"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match=r"folder\.jsonl: cannot be read: Is a directory$"):
        use(Dataset(tmp_path / "folder.jsonl"))


@pytest.mark.parametrize("name", ["in.json", "in", "in.jsonl.gz"])
def test_an_unknown_suffix_lists_what_is_accepted(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory$"):
        list(Dataset(tmp_path / name))
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"unknown kind of file .*; accepted: \.jsonl .*\.txt .*\.csv and \.parquet"):
        list(Dataset(tmp_path / name))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n \r\n\n"])
@pytest.mark.parametrize("name", ["in.jsonl", "in.txt", "in.csv"])
def test_a_file_without_requests_is_empty(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match="empty_file"):
        list(Dataset(path, template="{text}" if name == "in.csv" else None))


def test_a_header_alone_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"text\n")
    with pytest.raises(InputError, match="empty_file: there is no request"):
        list(Dataset(path, template="{text}"))


def test_a_template_is_for_tables(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\n")
    with pytest.raises(InputError, match=r"a template goes with \.csv and \.parquet"):
        list(Dataset(path, template="{text}"))


def test_seen_ids_tell_the_first_line_of_many() -> None:
    seen = SeenIds()
    assert [seen.first_line(f"id-{n}", n + 1) for n in range(20_000)] == [None] * 20_000
    assert [seen.first_line(f"id-{n}", 99_999) for n in range(20_000)] == list(range(1, 20_001))
