"""Plain text, CSV and Parquet in, with a template where there are columns."""

import csv
import io
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.dataset.reader import Dataset, InputLine, LineError
from api.errors import InputError

Read = Callable[..., list[InputLine | LineError]]


def prompts(outcomes: list[InputLine | LineError]) -> list[tuple[int, str, str | None]]:
    return [(o.line, o.custom_id, o.body.prompt) for o in outcomes if isinstance(o, InputLine)]


def errors(outcomes: list[InputLine | LineError]) -> list[LineError]:
    return [outcome for outcome in outcomes if isinstance(outcome, LineError)]


def parquet(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_text_has_one_prompt_a_line(read: Read) -> None:
    outcomes = read("one\r\n\n  two \u2028 {x} \n \t\n\0three", "in.txt", defaults={"max_tokens": 3})
    assert prompts(outcomes) == [
        (1, "request-1", "one"),
        (3, "request-3", "  two \u2028 {x} "),
        (5, "request-5", "\0three"),
    ]
    assert {o.body.max_tokens for o in outcomes if isinstance(o, InputLine)} == {3}


def test_csv_rows_keep_physical_lines(read: Read) -> None:
    data = '\ufeffid,text\r\nfirst,"a, ""b""\r\n\u2028c"\r\n\r\n,plain\r\nthird,'
    assert prompts(read(data, "in.csv", template="Sum {{{id}}}: {text}!")) == [
        (2, "first", 'Sum {first}: a, "b"\r\n\u2028c!'),
        (5, "request-5", "Sum {}: plain!"),
        (6, "third", "Sum {third}: !"),
    ]


def test_bad_csv_rows_are_line_errors(read: Read) -> None:
    data = 'id,text\n1,a,b\n2\n3,"c"d\n4,x\ry\n5,fine\n6,"open\nand on\n'
    outcomes = read(data, "in.csv", template="{text}")
    assert prompts(outcomes) == [(6, "5", "fine")]
    assert [(e.line, e.code, e.message) for e in errors(outcomes)] == [
        (2, "invalid_csv_row", "3 fields, and the header has 2"),
        (3, "invalid_csv_row", "1 fields, and the header has 2"),
        (4, "invalid_csv_row", 'text after a closing quote on line 4; write "" for a quote'),
        (5, "invalid_csv_row", "a carriage return outside quotes"),
        (7, "invalid_csv_row", "a quoted field is never closed"),
    ]


def test_a_filled_template_can_be_empty(read: Read) -> None:
    [outcome] = read('id,text\n1,""\n', "in.csv", template="{text}")
    assert isinstance(outcome, LineError)
    assert (outcome.line, outcome.code, outcome.custom_id) == (2, "empty_prompt", "1")


def test_a_long_csv_line_is_an_error_of_that_line(read: Read) -> None:
    long, good = read("text\n" + "x" * 2000 + "\nb\n", "in.csv", template="{text}", max_line_bytes=1024)
    assert isinstance(long, LineError)
    assert (long.line, long.code) == (2, "line_too_long")
    assert prompts([good]) == [(3, "request-3", "b")]


def test_an_endless_csv_field_stops_the_reading(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    before = csv.field_size_limit(1024)
    try:
        with pytest.raises(
            InputError, match="row that starts on line 3 has an endless field; is a closing quote missing"
        ):
            read('text\nok\n"open\n' + "a line of text\n" * 100, "in.csv", template="{text}", max_line_bytes=1024)
    finally:
        csv.field_size_limit(before)


def test_duplicate_ids_of_a_table(read: Read) -> None:
    assert errors(read("id,text\n7,a\n7,b\n", "in.csv", template="{text}")) == [
        LineError(3, "duplicate_custom_id", "custom_id '7' is already used (first on line 2)", "7")
    ]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("S: {txt}", r"in\.csv: no column 'txt' for the template; columns: id, text, text$"),
        ("S: {text}", r"in\.csv: the template's column 'text' appears more than once; rename one$"),
        (None, r"in\.csv: a table needs a template, such as --template 'Summarise: \{id\}'; columns: id, text, text$"),
        ("no column", r"template 'no column' names no column; write one in braces, as in \{text\}$"),
        ("{}", r"template '\{\}': braces hold a column name and nothing else"),
        ("{id!r}", r"template '\{id!r\}': braces hold a column name and nothing else"),
        ("{id:>9}", r"braces hold a column name and nothing else"),
        ("{id", r"template '\{id': .*; write \{\{ and \}\} for braces$"),
    ],
)
def test_a_template_that_does_not_fit_is_one_error(read: Read, template: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read("id,text,text\n1,a,b\n2,c,d\n", "in.csv", template=template)


def test_a_column_may_be_called_anything_without_layout(read: Read) -> None:
    assert prompts(read("a.b,the text[0]\n1,2\n", "in.csv", template="{a.b}-{the text[0]}")) == [
        (2, "request-2", "1-2")
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1))
def test_any_text_comes_back_from_csv(read: Read, cells: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *cells])
    outcomes = read(text.getvalue(), "in.csv", template="{a}|{b}")
    assert [prompt for _, _, prompt in prompts(outcomes)] == [f"{a}|{b}" for a, b in cells]


def test_parquet_rows(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "in.parquet",
        id=[10, 11, None],
        text=["a\0\u2028b", None, "c"],
        score=[1.5, 2.0, 3.0],
        day=[date(2024, 2, 29)] * 3,
        other=[[1], [2], [3]],
    )
    outcomes = list(Dataset(path, template="{day} {score}: {text}"))
    assert prompts(outcomes) == [
        (1, "10", "2024-02-29 1.5: a\0\u2028b"),
        (3, "request-3", "2024-02-29 3.0: c"),
    ]
    assert errors(outcomes) == [LineError(2, "invalid_request", "column text: is null", "11")]
    [first, *_] = Dataset(path, template="{other}")
    assert first == LineError(
        1, "invalid_request", "column other: list found; text, number, date or boolean expected", None
    )


def test_parquet_is_streamed_over_batches(tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet", text=[f"t{row}" for row in range(2500)])
    outcomes = prompts(list(Dataset(path, template="{text}")))
    assert outcomes == [(row + 1, f"request-{row + 1}", f"t{row}") for row in range(2500)]


def test_parquet_errors_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(InputError, match=r"in\.parquet: is not a Parquet file"):
        list(Dataset(path, template="{text}"))
    with pytest.raises(InputError, match=r"no column 'txt' for the template; columns: text$"):
        list(Dataset(parquet(path, text=["a"]), template="{txt}"))
    with pytest.raises(InputError, match="empty_file"):
        list(Dataset(parquet(path, text=pyarrow.array([], pyarrow.string())), template="{text}"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "in.parquet", text=["a"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"uv tool install 'cidermill\[parquet\]'"):
        list(Dataset(path, template="{text}"))
