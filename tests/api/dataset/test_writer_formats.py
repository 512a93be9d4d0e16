"""JSON lines, CSV, Parquet and bare text, each read back by an independent reader."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.dataset.reader import Dataset, InputLine, LineError
from api.dataset.writer import default_error_path, write_errors, write_results
from api.errors import InputError

Make = Callable[..., Any]


def test_jsonl(rows: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert write_results(rows, path, "jsonl") == 5
    first, failed, cancelled, expired, queued = map(json.loads, path.read_bytes().split(b"\n")[:-1])
    assert first == {
        "custom_id": "c0",
        "line": 1,
        "state": "completed",
        "text": "one\ntwo",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "cached_prompt_tokens": 3, "reasoning_tokens": 0},
        "stats": {
            "wall_ms": 120.5,
            "ttft_ms": None,
            "decode_tps": 33.25,
            "e2e_tps": None,
            "tokens_per_pass": None,
            "acceptance": None,
            "drafter": "none",
            "verification": "plain",
        },
        "error": None,
    }
    assert failed["text"] is None
    assert failed["error"] == {"code": "context_length_exceeded", "message": "9 tokens do not fit 8", "status": 400}
    assert [cancelled["error"]["code"], expired["error"]["code"], queued["error"]["code"]] == [
        "batch_cancelled",
        "batch_expired",
        "request_not_finished",
    ]


def test_jsonl_shows_reasoning_matched_stop_and_notes_where_there_are_any(completed: Make, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_results([completed(reasoning="r", matched_stop="END", notes=["max_tokens clamped to 64"])], path, "jsonl")
    record = json.loads(path.read_bytes())
    assert (record["reasoning"], record["matched_stop"], record["notes"]) == ("r", "END", ["max_tokens clamped to 64"])


def test_text_is_written_as_it_is_not_escaped(completed: Make, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_results([completed(text="é\u2028")], path, "jsonl")
    assert '"é\u2028"'.encode() in path.read_bytes()


def test_csv(rows: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert write_results(rows, path, "csv") == 5
    with open(path, newline="", encoding="utf-8") as stream:
        records = list(csv.DictReader(stream, strict=True))
    assert records[0] == {
        "custom_id": "c0",
        "line": "1",
        "state": "completed",
        "choice": "0",
        "text": "one\ntwo",
        "reasoning": "",
        "finish_reason": "stop",
        "prompt_tokens": "5",
        "cached_prompt_tokens": "3",
        "completion_tokens": "2",
        "wall_ms": "120.5",
        "decode_tps": "33.25",
        "error_code": "",
        "error_message": "",
    }
    assert [(r["state"], r["text"], r["error_code"]) for r in records[1:]] == [
        ("failed", "", "context_length_exceeded"),
        ("cancelled", "", "batch_cancelled"),
        ("expired", "", "batch_expired"),
        ("queued", "", "request_not_finished"),
    ]


def test_parquet(rows: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    assert write_results(rows * 500, path, "parquet") == 2500
    table = pyarrow.parquet.read_table(path)
    assert table.num_rows == 2500
    assert table.slice(0, 2).to_pylist() == [
        {
            "custom_id": "c0",
            "line": 1,
            "state": "completed",
            "choice": 0,
            "text": "one\ntwo",
            "reasoning": None,
            "finish_reason": "stop",
            "prompt_tokens": 5,
            "cached_prompt_tokens": 3,
            "completion_tokens": 2,
            "wall_ms": 120.5,
            "decode_tps": 33.25,
            "error_code": None,
            "error_message": None,
        },
        {
            "custom_id": "c1",
            "line": 2,
            "state": "failed",
            "choice": None,
            "text": None,
            "reasoning": None,
            "finish_reason": None,
            "prompt_tokens": None,
            "cached_prompt_tokens": None,
            "completion_tokens": None,
            "wall_ms": None,
            "decode_tps": None,
            "error_code": "context_length_exceeded",
            "error_message": "9 tokens do not fit 8",
        },
    ]


def test_text_blocks_stand_for_the_rows(rows: list[Any], completed: Make, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    assert write_results([*rows[:2], completed(2, "a\x1eb\n")], path, "text") == 3
    content = path.read_bytes().decode()
    assert content.split("\n\x1e\n") == ["one\ntwo", "", "a\u241eb\n", ""]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1))
def test_any_text_comes_back_byte_for_byte(completed: Make, tmp_path: Path, texts: list[str]) -> None:
    rows = [completed(index, text) for index, text in enumerate(texts)]
    table, parquet, text = tmp_path / "out.csv", tmp_path / "out.parquet", tmp_path / "out.txt"
    write_results(rows, table, "csv")
    with open(table, newline="", encoding="utf-8") as stream:
        assert [record["text"] for record in csv.DictReader(stream, strict=True)] == texts
    outcomes = list(Dataset(table, template="{text}"))
    assert [outcome.body.prompt for outcome in outcomes if isinstance(outcome, InputLine)] == texts
    write_results(rows, parquet, "parquet")
    assert pyarrow.parquet.read_table(parquet)["text"].to_pylist() == texts
    write_results(rows, text, "text")
    blocks = text.read_bytes().decode().split("\n\x1e\n")
    assert blocks == [*(written.replace("\x1e", "\u241e") for written in texts), ""]


@pytest.mark.parametrize("fmt", ["openai", "jsonl", "csv", "parquet", "text"])
def test_no_rows_make_a_file_without_rows(fmt: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert write_results([], path, fmt) == 0
    assert path.stat().st_size < 4096


@pytest.mark.parametrize("fmt", ["openai", "jsonl", "csv", "parquet", "text"])
def test_standard_output_gets_the_same_bytes(fmt: str, tmp_path: Path, completed: Make) -> None:
    program = f"""
import sys
from pathlib import Path
from api.dataset.writer import write_results
for path in (None, Path(sys.argv[1])):
    assert write_results([], path, {fmt!r}) == 0
print("after")
"""
    path = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True, timeout=60)
    assert done.stdout == path.read_bytes() + b"after\n"


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"uv tool install 'cidermill\[parquet\]'"):
        write_results([], tmp_path / "out.parquet", "parquet")
    assert list(tmp_path.iterdir()) == []


def test_errors_are_written_as_json_lines(tmp_path: Path) -> None:
    path = default_error_path(tmp_path / "out.jsonl")
    assert path == tmp_path / "out.errors.jsonl"
    errors = [
        LineError(2, "invalid_json_line", "ends inside an object, column 31", None),
        LineError(3, "duplicate_custom_id", "é", "x"),
    ]
    assert write_errors(iter(errors), path) == 2
    assert path.read_bytes().decode() == (
        '{"line":2,"custom_id":null,"code":"invalid_json_line","message":"ends inside an object, column 31"}\n'
        '{"line":3,"custom_id":"x","code":"duplicate_custom_id","message":"é"}\n'
    )
