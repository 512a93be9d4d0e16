"""Column types that take whatever a model or a file name can produce."""

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Dialect, Text

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
SQLITE_INTEGERS = range(-(2**63), 2**63)
TOKENS = range(2**40 + 1)
"""What one result may count: a sum over eight million of them is an integer of SQLite's."""
LONGEST_MS = LATEST_SECONDS = 1e12
"""Thirty years, and the year 33658: no sum or difference of such numbers is infinite."""


def storable_text(text: str) -> str:
    """`text` with lone surrogates, which no UTF-8 can hold, as U+FFFD; NUL and other controls stay as they are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class SafeText(Text):
    """Text of any content."""

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], str | None]:
        return _stored


class JsonText(Text):
    """A JSON value, with texts of any content, in the text column; SQLite's JSON functions read it."""

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str | None]:
        return lambda value: None if value is None else storable_text(_JSON.encode(value))

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], Any]:
        return lambda value: None if value is None else json.loads(value)


def _stored(text: str | None) -> str | None:
    return None if text is None else storable_text(text)
