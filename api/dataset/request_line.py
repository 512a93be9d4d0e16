"""One object of a dataset to one request: OpenAI Batch lines and short lines, told apart by their fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from api.dataset.problem import Problem
from api.dataset.sentences import explain, kind_of, shown, unknown_field
from api.errors import InputError
from api.schemas import RequestBody

MAX_CUSTOM_ID_BYTES = 512
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ENVELOPE = ("custom_id", "method", "url", "body")
_INPUT_OF = {CHAT: "messages", COMPLETIONS: "prompt"}


@dataclass(frozen=True)
class InputLine:
    """A request of a dataset. line: from 1; physical lines of text files, rows of Parquet files."""

    line: int
    custom_id: str
    body: RequestBody


@dataclass(frozen=True)
class LineError:
    """A line that cannot be run. code: as in OpenAI's batch API. custom_id: None where the line has none to tell."""

    line: int
    code: str
    message: str
    custom_id: str | None


def check_defaults(defaults: Mapping[str, JsonValue]) -> None:
    """Raises InputError for a parameter of the whole batch that would make every line an error."""
    try:
        RequestBody.model_validate({**defaults, "prompt": "any"})
    except ValidationError as error:
        raise InputError(f"parameters of the batch: {explain(error)}") from error


def default_custom_id(line: int) -> str:
    return f"request-{line}"


def request_line(
    record: Mapping[str, JsonValue], line: int, defaults: Mapping[str, JsonValue]
) -> InputLine | LineError:
    """The request that a JSON line or a table row asks for. `defaults` stand where the line says nothing."""
    openai = any(field in record for field in ("body", "url", "method"))
    custom_id = None
    try:
        custom_id = _openai_id(record) if openai else _short_id(record, line)
        return InputLine(line, custom_id, _openai_body(record, defaults) if openai else _short_body(record, defaults))
    except Problem as problem:
        return LineError(line, problem.code, problem.message, custom_id)


def _openai_id(record: Mapping[str, JsonValue]) -> str:
    if record.get("custom_id") is None:
        raise Problem("missing_custom_id", "custom_id is missing; every OpenAI Batch line needs one")
    return _checked_id("custom_id", record["custom_id"])


def _short_id(record: Mapping[str, JsonValue], line: int) -> str:
    """custom_id, else id (a number is taken as its text, as in many data sets), else request-<line>."""
    custom_id, plain = record.get("custom_id"), record.get("id")
    if custom_id is not None and plain is not None:
        raise Problem("invalid_request", "custom_id and id are both given; give one of them")
    if custom_id is not None:
        return _checked_id("custom_id", custom_id)
    if plain is None:
        return default_custom_id(line)
    return _checked_id("id", str(plain) if isinstance(plain, int | float) and not isinstance(plain, bool) else plain)


def _checked_id(field: str, value: JsonValue) -> str:
    if not isinstance(value, str):
        raise Problem("invalid_request", f"{field}: string expected, found {shown(value)}")
    size = len(value.encode())
    if not value or size > MAX_CUSTOM_ID_BYTES:
        found = f"{size} bytes are more than {MAX_CUSTOM_ID_BYTES}" if value else "is empty"
        raise Problem("invalid_request", f"{field}: {found}")
    return value


def _openai_body(record: Mapping[str, JsonValue], defaults: Mapping[str, JsonValue]) -> RequestBody:
    unknown = [unknown_field(name, _ENVELOPE) for name in record if name not in _ENVELOPE]
    if unknown:
        raise Problem("invalid_request", f"{'; '.join(unknown)} (parameters go inside body)")
    if record.get("method") != "POST":
        raise Problem("invalid_method", f'method: {_given(record, "method")}, "POST" expected')
    url, body = record.get("url"), record.get("body")
    if not isinstance(url, str) or url not in _INPUT_OF:
        raise Problem("url_mismatch", f"url: {_given(record, 'url')}, {CHAT} or {COMPLETIONS} expected")
    if not isinstance(body, dict):
        found = kind_of(body) if "body" in record else "nothing"
        raise Problem("invalid_request", f"body: object expected, found {found}")
    if body.get(_INPUT_OF[url]) is None:
        raise Problem("invalid_request", f"{_INPUT_OF[url]} is missing; {url} takes {_INPUT_OF[url]}")
    return _checked_body(_completions_names(body) if url == COMPLETIONS else body, defaults)


def _given(record: Mapping[str, JsonValue], field: str) -> str:
    return f"found {shown(record[field])}" if field in record else "is missing"


def _completions_names(body: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What only /v1/completions has: a prompt taken as it is, and logprobs as the number of alternatives."""
    translated = {**body, "raw": True}
    count = body.get("logprobs")
    if isinstance(count, int) and not isinstance(count, bool):
        translated |= {"logprobs": True, "top_logprobs": count}
    return translated


def _short_body(record: Mapping[str, JsonValue], defaults: Mapping[str, JsonValue]) -> RequestBody:
    return _checked_body({name: value for name, value in record.items() if name not in ("custom_id", "id")}, defaults)


def _checked_body(own: Mapping[str, JsonValue], defaults: Mapping[str, JsonValue]) -> RequestBody:
    if own.get("profile") is not None:
        raise Problem("invalid_request", "profile: a line cannot choose one; give --profile NAME, or the values here")
    try:
        body = RequestBody.model_validate(_merged(own, defaults))
    except ValidationError as error:
        raise Problem("invalid_request", explain(error)) from error
    if body.prompt == "" and not body.raw:
        raise Problem("empty_prompt", f"prompt is empty; only {COMPLETIONS} takes an empty prompt")
    return body


def _merged(own: Mapping[str, JsonValue], defaults: Mapping[str, JsonValue]) -> dict[str, Any]:
    """The line's own values over the defaults; a null says nothing, and OpenAI's second name counts as the first."""
    said = {name: value for name, value in own.items() if value is not None or name not in defaults}
    if said.get("max_completion_tokens") is not None:
        defaults = {name: value for name, value in defaults.items() if name != "max_tokens"}
    return {**defaults, **said}
