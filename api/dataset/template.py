"""Prompts from columns: `Summarise: {text}`, with `{{` and `}}` for braces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from api.errors import InputError


@dataclass(frozen=True)
class Template:
    """A parsed template. parts: literal text and the column after it (None at the end)."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Raises InputError for a template that names no column, or does more than name columns."""
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise InputError(f"template {text!r}: {error}; write {{{{ and }}}} for braces") from error
        for _, column, layout, conversion in pieces:
            if column == "" or layout or conversion:
                raise InputError(f"template {text!r}: braces hold a column name and nothing else, as in {{text}}")
        if not any(column for _, column, _, _ in pieces):
            raise InputError(f"template {text!r} names no column; write one in braces, as in {{text}}")
        return cls(tuple((literal, column) for literal, column, _, _ in pieces))

    @property
    def columns(self) -> list[str]:
        """The columns used, each once, in order."""
        return list(dict.fromkeys(column for _, column in self.parts if column is not None))

    def check(self, columns: Sequence[str], name: str) -> None:
        """Raises InputError for a column that the table `name` lacks, or has twice."""
        for column in self.columns:
            if column not in columns:
                raise InputError(f"{name}: no column {column!r} for the template; columns: {', '.join(columns)}")
            if columns.count(column) > 1:
                raise InputError(f"{name}: the template's column {column!r} appears more than once; rename one")

    def fill(self, row: Mapping[str, str]) -> str:
        return "".join(literal + (row[column] if column is not None else "") for literal, column in self.parts)
