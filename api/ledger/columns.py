"""Column types that take whatever a model or a file name can produce."""

import json
from typing import Any

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

SQLITE_INTEGERS = range(-(2**63), 2**63)


def storable_text(text: str) -> str:
    """`text` with lone surrogates, which no UTF-8 can hold, as U+FFFD; NUL and other controls stay as they are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class SafeText(TypeDecorator[str]):
    """Text of any content."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable_text(value)


class JsonText(TypeDecorator[Any]):
    """A JSON value, with texts of any content, in the text column; SQLite's JSON functions read it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else storable_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)
