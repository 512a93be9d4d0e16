"""One line of JSON to one object, or a sentence that says what is wrong with it and where."""

import json
import math
import re

from pydantic import JsonValue
from pydantic_core import from_json

from api.dataset.problem import Problem

_CODE = "invalid_json_line"
_POSITION = re.compile(r"^(?P<reason>.*) at line \d+ column (?P<column>\d+)$", re.DOTALL)
_KINDS = {
    list: "an array",
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_SENTENCES = {
    "EOF while parsing an object": "ends inside an object",
    "EOF while parsing a list": "ends inside an array",
    "EOF while parsing a string": "ends inside a string",
    "EOF while parsing a value": "ends where a value is expected",
    "trailing characters": "text after the end of the object",
    "trailing comma": "comma before a closing bracket",
    "expected `:`": "colon expected after a key",
    "expected `,` or `}`": "comma or closing brace expected",
    "expected `,` or `]`": "comma or closing bracket expected",
    "key must be a string": "key in double quotes expected",
    "expected value": "value expected",
    "expected ident": "value expected",
    "invalid escape": "invalid escape after a backslash",
    "invalid number": "invalid number",
    "number out of range": "number out of range",
    "recursion limit exceeded": "nested too deeply",
    "unexpected end of hex escape": "unpaired surrogate",
    "lone leading surrogate in hex escape": "unpaired surrogate",
    "control character (\\u0000-\\u001F) found while parsing a string": "control character inside a string",
}


def object_of(text: str) -> dict[str, JsonValue]:
    """The JSON object that is the whole of `text`. Raises Problem (invalid_json_line)."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(_CODE, _sentence(str(error), text)) from error
    if not isinstance(value, dict):
        raise Problem(_CODE, f"{_KINDS[type(value)]}, where an object is expected")
    json.loads(text, object_pairs_hook=_refuse_repeated, parse_float=_refuse_infinite)
    return value


def _sentence(message: str, text: str) -> str:
    """The parser's message in our words, with the column (from 1) counted in characters, as an editor shows it."""
    match = _POSITION.match(message)
    if match is None:
        return message
    column = len(text.encode()[: int(match["column"])].decode(errors="ignore"))
    sentence = _SENTENCES.get(match["reason"], match["reason"])
    if sentence == "unpaired surrogate":
        return f"{sentence} at column {column}"
    return f"{sentence}, column {column}"


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    """A repeated key silently keeps its last value in every parser, so half of what the line says would be lost."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise Problem(_CODE, f"key {json.dumps(key, ensure_ascii=False)} appears twice in one object")
        seen.add(key)


def _refuse_infinite(digits: str) -> None:
    """1e999 is legal JSON, reads as infinity, and could not be written back."""
    if math.isinf(float(digits)):
        raise Problem(_CODE, f"number {digits[:40]} is out of range")
