"""Rows of a Parquet file, streamed in batches. A row's line is its number, from 1."""

import datetime
import decimal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from api.dataset.csv_rows import BadRow, Row
from api.dataset.problem import Problem
from api.errors import InputError

INSTALL = "uv tool install 'cidermill[parquet]'"
_BATCH_ROWS = 1000
_SCALARS = (str, int, float, decimal.Decimal, datetime.date, datetime.time)


class ParquetTable:
    """A Parquet file; `columns` are there from the start. Raises InputError when it is none, or pyarrow is missing."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise InputError(f"{path}: reading Parquet needs pyarrow: {INSTALL}") from error
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise InputError(f"{path}: is not a Parquet file: {error}") from error
        self.columns: list[str] = list(self._file.schema_arrow.names)

    def rows(self, columns: Sequence[str]) -> Iterator[Row | BadRow]:
        """Rows with these columns only; a column that no template names is not read from disk."""
        number = 0
        with self._file:
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                for index in range(batch.num_rows):
                    number += 1
                    yield _row(number, batch, index)


def _row(number: int, batch: Any, index: int) -> Row | BadRow:
    try:
        names = batch.schema.names
        return Row(
            number, {name: _text(name, column[index]) for name, column in zip(names, batch.columns, strict=True)}
        )
    except Problem as problem:
        return BadRow(number, problem)


def _text(column: str, scalar: Any) -> str | None:
    try:
        value = scalar.as_py()
    except UnicodeDecodeError as error:
        raise Problem("invalid_request", f"column {column}: is not UTF-8 at byte {error.start + 1}") from error
    if value is None:
        return None
    if not isinstance(value, _SCALARS):
        kind = type(value).__name__
        raise Problem("invalid_request", f"column {column}: {kind} found; text, number, date or boolean expected")
    return str(value)
