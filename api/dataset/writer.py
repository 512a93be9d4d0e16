"""Results out: OpenAI's batch output, plain JSON lines, CSV, Parquet, or the bare texts. UTF-8, lines end in `\\n`."""

import csv
import io
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import to_json

from api.choices import Format
from api.dataset.openai_line import openai_line
from api.dataset.output_file import output
from api.dataset.output_row import COLUMNS, json_row, table_rows, texts_of
from api.dataset.parquet_rows import INSTALL
from api.dataset.reader import LineError
from api.errors import InputError
from api.ledger.records import RecordedRequest

__all__ = ["TEXT_END", "Format", "default_error_path", "openai_line", "write_errors", "write_results"]

# After each text of the `text` format: a line with ASCII's record separator, which a terminal shows as a blank line.
TEXT_END = "\n\x1e\n"
_ROW_GROUP = 1000


def write_results(rows: Iterable[RecordedRequest], path: Path | None, fmt: Format) -> int:
    """Write the requests in their order and return how many; None = standard output.

    openai: OpenAI's batch output lines. jsonl: custom_id, text, finish_reason, usage, stats, error, and choices where
    several were asked for. csv, parquet: the same as columns, a row per choice. text: the text of each choice that was
    asked for, empty where there is none, then a line that holds U+001E alone, so that `split("\\n\\x1e\\n")` gives the
    texts back; U+001E within a text is written as U+241E, its visible symbol.

    Raises StorageError for a file that cannot be written; nothing half done is left. Raises InputError for parquet
    without pyarrow.
    """
    if fmt == "parquet":
        _require_pyarrow()
    with output(path) as stream:
        return _WRITERS[fmt](rows, stream)


def write_errors(errors: Iterable[LineError], path: Path) -> int:
    """Write the lines that were left out as JSON lines `{line, custom_id, code, message}`; returns how many."""
    records = ({"line": e.line, "custom_id": e.custom_id, "code": e.code, "message": e.message} for e in errors)
    with output(path) as stream:
        return _write_pieces(map(_json, records), stream)


def default_error_path(output_path: Path) -> Path:
    """Where the lines left out go: out.jsonl -> out.errors.jsonl."""
    return output_path.with_name(f"{output_path.stem}.errors.jsonl")


def _write_pieces(pieces: Iterable[bytes], stream: BinaryIO) -> int:
    count = 0
    for piece in pieces:
        stream.write(piece)
        count += 1
    return count


def _json(record: dict[str, Any]) -> bytes:
    return to_json(record, inf_nan_mode="null") + b"\n"


def _write_openai(rows: Iterable[RecordedRequest], stream: BinaryIO) -> int:
    return _write_pieces((_json(openai_line(row)) for row in rows), stream)


def _write_jsonl(rows: Iterable[RecordedRequest], stream: BinaryIO) -> int:
    return _write_pieces((_json(json_row(row)) for row in rows), stream)


def _write_text(rows: Iterable[RecordedRequest], stream: BinaryIO) -> int:
    return _write_pieces(("".join(map(_text_block, texts_of(row))).encode() for row in rows), stream)


def _text_block(text: str) -> str:
    return text.replace("\x1e", "\u241e") + TEXT_END


def _write_csv(rows: Iterable[RecordedRequest], stream: BinaryIO) -> int:
    """Every text is quoted: a bare carriage return or NUL in it stays what it is."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    try:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007
            writer.writerows(table_rows(row))
        return count
    finally:
        text.detach()


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise InputError(f"writing Parquet needs pyarrow: {INSTALL}") from error


def _write_parquet(rows: Iterable[RecordedRequest], stream: BinaryIO) -> int:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    count, remaining = 0, iter(rows)
    with ParquetWriter(stream, schema) as writer:
        while group := [table_rows(row) for row in islice(remaining, _ROW_GROUP)]:
            writer.write_table(pyarrow.Table.from_pylist([*chain.from_iterable(group)], schema=schema))
            count += len(group)
    return count


_WRITERS: dict[Format, Callable[[Iterable[RecordedRequest], BinaryIO], int]] = {
    "openai": _write_openai,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "text": _write_text,
}
