"""A dataset of prompts, read line by line: OpenAI Batch lines, short lines, plain text, CSV and Parquet.

The suffix of the file says what it is; standard input (`-`) is JSON lines.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pydantic import JsonValue

from api.dataset.csv_rows import BadRow, CsvTable, Row
from api.dataset.json_line import object_of
from api.dataset.lines import Line, LongLine, physical_lines
from api.dataset.parquet_rows import ParquetTable
from api.dataset.problem import Problem
from api.dataset.request_line import InputLine, LineError, check_defaults, request_line
from api.dataset.seen import SeenIds
from api.dataset.source import STANDARD_INPUT, open_source, sha256_of, shown, unreadable
from api.dataset.template import Template
from api.errors import InputError

__all__ = ["Dataset", "InputLine", "LineError", "Validation", "validate"]

DEFAULT_MAX_LINE_BYTES = 8 * 2**20
KEPT_ERRORS = 100
"""Bad lines that a validation remembers: of a file of another kind, there are as many as it has lines."""
ACCEPTED = ".jsonl (OpenAI Batch lines or short lines), .txt (one prompt a line), .csv and .parquet (with a template)"
_TABLES = (".csv", ".parquet")
_ID_COLUMNS = ("custom_id", "id")

Outcome = InputLine | LineError


@dataclass(frozen=True)
class Dataset:
    """A file of requests. Reading it never holds more than one line, or one batch of Parquet rows.

    template: text of the prompt with column names in braces; for CSV and Parquet, and needed there.
    defaults: parameters of the whole batch, such as max_tokens or temperature; a line's own value wins.
    max_line_bytes: a longer line is a LineError.
    """

    path: Path
    template: str | None = None
    defaults: Mapping[str, JsonValue] = field(default_factory=dict)
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES

    def __iter__(self) -> Iterator[Outcome]:
        """Requests and bad lines in file order; blank lines are passed over.

        Raises InputError for what is wrong with the file as a whole: missing, unreadable, not UTF-8, of an unknown
        suffix, without any request (empty_file), a template that does not fit the columns, or defaults out of range.
        """
        empty = True
        for outcome in _without_repeated_ids(self._outcomes()):
            empty = False
            yield outcome
        if empty:
            raise InputError(f"{shown(self.path)}: empty_file: there is no request in it")

    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the file's bytes."""
        return sha256_of(self.path)

    def _outcomes(self) -> Iterator[Outcome]:
        check_defaults(self.defaults)
        suffix = ".jsonl" if self.path == STANDARD_INPUT else self.path.suffix.lower()
        if suffix not in (".jsonl", ".txt", *_TABLES):
            with open_source(self.path):  # what is not there is of no kind
                pass
            raise InputError(f"{self.path}: unknown kind of file {suffix or '(no suffix)'}; accepted: {ACCEPTED}")
        if self.template is not None and suffix not in _TABLES:
            raise InputError(f"{shown(self.path)}: a template goes with .csv and .parquet, whose columns it names")
        with open_source(self.path) as stream:
            try:
                yield from self._of_kind(suffix, stream)
            except OSError as error:
                raise unreadable(self.path, error) from error

    def _of_kind(self, suffix: str, stream: BinaryIO) -> Iterator[Outcome]:
        if suffix == ".parquet":
            return self._parquet()
        lines = physical_lines(stream, shown(self.path), self.max_line_bytes)
        if suffix == ".csv":
            return self._csv(CsvTable(lines, shown(self.path), self.max_line_bytes))
        read = self._json_line if suffix == ".jsonl" else self._prompt_line
        return (
            _bad_line(line.number, line.problem) if isinstance(line, LongLine) else read(line)
            for line in lines
            if not _blank(line)
        )

    def _json_line(self, line: Line) -> Outcome:
        try:
            record = object_of(line.content)
        except Problem as problem:
            return _bad_line(line.number, problem)
        return request_line(record, line.number, self.defaults)

    def _prompt_line(self, line: Line) -> Outcome:
        return request_line({"prompt": line.content}, line.number, self.defaults)

    def _csv(self, table: CsvTable) -> Iterator[Outcome]:
        template = self._template(table.columns)
        return (self._table_row(row, template) for row in table)

    def _parquet(self) -> Iterator[Outcome]:
        table = ParquetTable(self.path)
        template = self._template(table.columns)
        wanted = [*template.columns, *(name for name in _ID_COLUMNS if name in table.columns)]
        return (self._table_row(row, template) for row in table.rows(list(dict.fromkeys(wanted))))

    def _template(self, columns: list[str]) -> Template:
        if not columns:
            raise InputError(f"{shown(self.path)}: empty_file: there is no header in it")
        if self.template is None:
            example = f"--template 'Summarise: {{{columns[0]}}}'"
            raise InputError(f"{self.path}: a table needs a template, such as {example}; columns: {', '.join(columns)}")
        template = Template.parse(self.template)
        template.check(columns, shown(self.path))
        return template

    def _table_row(self, row: Row | BadRow, template: Template) -> Outcome:
        if isinstance(row, BadRow):
            return _bad_line(row.line, row.problem)
        record: dict[str, JsonValue] = {name: row.values[name] for name in _ID_COLUMNS if row.values.get(name)}
        filled = {name: value for name, value in row.values.items() if value is not None}
        for column in template.columns:
            if column not in filled:
                custom_id = next((str(value) for value in record.values()), None)
                return LineError(row.line, "invalid_request", f"column {column}: is null", custom_id)
        return request_line({**record, "prompt": template.fill(filled)}, row.line, self.defaults)


def _bad_line(line: int, problem: Problem) -> LineError:
    return LineError(line, problem.code, problem.message, None)


def _blank(line: Line | LongLine) -> bool:
    return isinstance(line, Line) and line.blank


def _without_repeated_ids(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Outcomes, with each custom id after its first line turned into an error."""
    seen = SeenIds()
    for outcome in outcomes:
        first = None if outcome.custom_id is None else seen.first_line(outcome.custom_id, outcome.line)
        if first is None or isinstance(outcome, LineError):
            yield outcome
        else:
            message = f"custom_id {outcome.custom_id!r} is already used (first on line {first})"
            yield LineError(outcome.line, "duplicate_custom_id", message, outcome.custom_id)


@dataclass
class Validation:
    """What a whole reading found. total, valid, invalid: requests, without blank lines. errors: the first bad lines."""

    total: int = 0
    invalid: int = 0
    errors: list[LineError] = field(default_factory=list)

    @property
    def valid(self) -> int:
        return self.total - self.invalid


def validate(dataset: Dataset, on_line: Callable[[int], None] | None = None) -> Validation:
    """Read the whole dataset; `on_line` is told the requests read so far.

    Raises InputError as reading does.
    """
    validation = Validation()
    for outcome in dataset:
        validation.total += 1
        if isinstance(outcome, LineError):
            validation.invalid += 1
            if len(validation.errors) < KEPT_ERRORS:
                validation.errors.append(outcome)
        if on_line is not None:
            on_line(validation.total)
    return validation
