"""Sentences for what the schema refuses: field, what was found, what was expected."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from api.schemas import PASSTHROUGH_FIELDS, ChatMessage, RequestBody

_SHOWN_CHARACTERS = 40
_KNOWN_FIELDS = sorted(
    {*RequestBody.model_fields, *PASSTHROUGH_FIELDS, "max_completion_tokens", "custom_id"} - {"profile"}
)
_UNSUPPORTED_FIELDS = frozenset(
    {
        "audio",
        "best_of",
        "echo",
        "function_call",
        "functions",
        "modalities",
        "parallel_tool_calls",
        "prediction",
        "stream_options",
        "suffix",
        "verbosity",
        "web_search_options",
    }
)
_NOT_SUPPORTED = {"stream": "only false"}

_EXPECTED: dict[str, str] = {
    "string_type": "string",
    "int_type": "integer",
    "int_from_float": "integer",
    "int_parsing": "integer",
    "float_type": "number",
    "float_parsing": "number",
    "finite_number": "finite number",
    "bool_type": "true or false",
    "list_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
}
_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def explain(error: ValidationError) -> str:
    """All that is wrong with a request, one sentence a field, joined by semicolons."""
    return "; ".join(_unique(_sentence(detail) for detail in error.errors(include_url=False)))


def field_name(location: Iterable[int | str]) -> str:
    """A pydantic location as it would be written in code: messages[0].content."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def shown(value: object) -> str:
    """A value as its JSON, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def kind_of(value: object) -> str:
    """What JSON calls the type of a value, with its article."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"


def reason_of(detail: ErrorDetails) -> str:
    """What is wrong with a value, without its field; pydantic's own words where there are no better ones."""
    return _reason(detail["type"], detail["input"], detail.get("ctx", {})) or detail["msg"]


def unknown_field(name: str, known: Iterable[str] = _KNOWN_FIELDS) -> str:
    """The sentence for a field that is not in the schema, with the nearest one that is."""
    last = name.rpartition(".")[2]
    if last in _UNSUPPORTED_FIELDS:
        return f"{name}: is not supported"
    near = difflib.get_close_matches(last, list(known), n=1)
    return f"{name}: unknown field" + (f"; did you mean {near[0]}?" if near else "")


def _sentence(detail: ErrorDetails) -> str:
    location, found = detail["loc"], detail["input"]
    field = field_name(location)
    if location and location[0] == "response_format":
        return _response_format(found, location)
    if field in _NOT_SUPPORTED:
        return f"{field}: {shown(found)} is not supported, {_NOT_SUPPORTED[field]} is"
    if detail["type"] == "extra_forbidden":
        return unknown_field(field, ChatMessage.model_fields if field.startswith("messages[") else _KNOWN_FIELDS)
    if detail["type"] == "missing":
        return f"{field} is missing"
    reason = reason_of(detail)
    return f"{field}: {reason}" if field else reason


def _response_format(found: object, location: tuple[int | str, ...]) -> str:
    if location[1:] and location[1] != "type":
        return f"{field_name(location)}: is not supported"
    return f"response_format: {shown(found)} is not supported, only text is"


def _reason(kind: str, found: object, context: dict[str, Any]) -> str | None:
    """What is wrong with a value, without its field; None = pydantic's own words will do."""
    if kind in _EXPECTED:
        return f"{_EXPECTED[kind]} expected, found {_found(found)}"
    if kind in _BOUNDS:
        word, limit = _BOUNDS[kind]
        number = found if isinstance(found, str) else shown(found)  # a setting of the environment is text
        return f"{number} is not {word} {_number(context[limit])}"
    match kind:
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return f"{shown(found)} is not {context['expected']}".replace("'", '"')
        case "too_long":
            return f"{context['actual_length']} items are more than {context['max_length']}"
        case "string_too_short":
            return "is empty"
        case "string_unicode":
            return "is not valid Unicode text"
    return None


def _found(value: object) -> str:
    """A scalar as it is, a structure by its kind."""
    return kind_of(value) if isinstance(value, list | dict) else shown(value)


def _number(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else str(limit)


def _unique(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))
