"""Rows of a CSV file (RFC 4180: commas, double quotes, line breaks inside quotes), with the line each starts on."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from api.dataset.lines import Line, LongLine
from api.dataset.problem import Problem
from api.errors import InputError

_CODE = "invalid_csv_row"


@dataclass(frozen=True)
class Row:
    """One row of a table. line: where it starts, from 1. values: column -> text; None is a null."""

    line: int
    values: dict[str, str | None]


@dataclass(frozen=True)
class BadRow:
    line: int
    problem: Problem


class CsvTable:
    """A CSV file read row by row; `columns` are there from the start.

    Raises InputError for a file that is empty, for a header that is broken, and where the rows after a mistake cannot
    be told apart any more.
    """

    def __init__(self, lines: Iterator[Line | LongLine], name: str, max_line_bytes: int) -> None:
        # The limit on a field is the module's own global; what we accept must fit whatever else was set.
        csv.field_size_limit(max(csv.field_size_limit(), max_line_bytes))
        self._name = name
        self._source = _Texts(lines)
        self._reader = csv.reader(self._source, strict=True)
        self.columns = self._header()

    def __iter__(self) -> Iterator[Row | BadRow]:
        while True:
            start = self._source.number + 1
            try:
                values = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRow(start, self._mistake(error, start))
            except _TooLongError as error:
                yield BadRow(error.line, error.problem)
            else:
                if values:
                    yield self._row(start, values)

    def _row(self, line: int, values: list[str]) -> Row | BadRow:
        if len(values) != len(self.columns):
            found = f"{len(values)} fields, and the header has {len(self.columns)}"
            return BadRow(line, Problem(_CODE, found))
        return Row(line, dict(zip(self.columns, values, strict=True)))

    def _header(self) -> list[str]:
        try:
            return next((names for names in self._reader if any(name.strip() for name in names)), [])
        except (csv.Error, _TooLongError) as error:
            raise InputError(f"{self._name}: line 1: the header cannot be read: {error}") from error

    def _mistake(self, error: csv.Error, start: int) -> Problem:
        reason = str(error)
        if "field larger than" in reason:
            raise InputError(
                f"{self._name}: the row that starts on line {start} has an endless field; is a closing quote missing?"
            ) from error
        if "unexpected end of data" in reason:
            return Problem(_CODE, "a quoted field is never closed")
        if "expected after" in reason:
            return Problem(_CODE, f'text after a closing quote on line {self._source.number}; write "" for a quote')
        return Problem(_CODE, "a carriage return outside quotes" if "new-line" in reason else reason)


class _TooLongError(Exception):
    def __init__(self, line: LongLine) -> None:
        self.line = line.number
        self.problem = line.problem
        super().__init__(line.problem.message)


class _Texts:
    """Texts of lines for the csv module; it goes on after an error, which a generator would not."""

    def __init__(self, lines: Iterator[Line | LongLine]) -> None:
        self._lines = lines
        self.number = 0

    def __iter__(self) -> "_Texts":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number = line.number
        if isinstance(line, LongLine):
            raise _TooLongError(line)
        return line.text
