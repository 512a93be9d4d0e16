"""A request as one plain record: for JSON lines, CSV and Parquet, which need no OpenAI envelope."""

from collections.abc import Sequence
from typing import Any

from api.dataset.openai_line import error_of
from api.ledger.records import RecordedRequest
from api.schemas import Choice, JobStats, RequestError

_STATS = ("wall_ms", "ttft_ms", "decode_tps", "e2e_tps", "tokens_per_pass", "acceptance", "drafter", "verification")

# Columns of CSV and Parquet, in order, with the type of their values; every column may be empty.
COLUMNS: dict[str, type] = {
    "custom_id": str,
    "line": int,
    "state": str,
    "choice": int,
    "text": str,
    "reasoning": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "cached_prompt_tokens": int,
    "completion_tokens": int,
    "wall_ms": float,
    "decode_tps": float,
    "error_code": str,
    "error_message": str,
}


def json_row(row: RecordedRequest) -> dict[str, Any]:
    """The record of a JSON line. text is null where there is no answer; error is null where there is one.

    A request for several choices has all of them in `choices`; text and the like are those of the first.
    """
    result, choices = row.result, _choices(row)
    first = _said(choices[0]) if choices else {"text": None, "finish_reason": None}
    record: dict[str, Any] = {"custom_id": row.custom_id, "line": row.line, "state": str(row.state), **first}
    if row.body.n > 1:
        record["choices"] = [{"index": index, **_said(choice)} for index, choice in enumerate(choices)]
    record["usage"] = None if result is None or result.usage is None else result.usage.model_dump()
    record["stats"] = None if row.stats is None else _brief(row.stats)
    record["error"] = _error(error_of(row))
    if result is not None and result.notes:
        record["notes"] = result.notes
    return record


def table_rows(row: RecordedRequest) -> list[dict[str, Any]]:
    """The records of a table, one per choice, or one without a choice: COLUMNS, None where there is nothing.

    What belongs to the whole request stands in its first record only, so that a column's sum counts it once.
    """
    choices = _choices(row)
    records = [_table_row(row, index, choice) for index, choice in enumerate(choices)] or [_table_row(row, None, None)]
    error, stats = error_of(row), row.stats
    usage = row.result.usage if row.result is not None else None
    records[0] |= {
        "prompt_tokens": usage.prompt_tokens if usage is not None else None,
        "cached_prompt_tokens": usage.cached_prompt_tokens if usage is not None else None,
        "completion_tokens": usage.completion_tokens - _tokens(choices[1:]) if usage is not None else None,
        "wall_ms": stats.wall_ms if stats is not None else None,
        "decode_tps": stats.decode_tps if stats is not None else None,
        "error_code": error.code if error is not None else None,
        "error_message": error.message if error is not None else None,
    }
    return records


def _table_row(row: RecordedRequest, index: int | None, choice: Choice | None) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(COLUMNS)
    record |= {"custom_id": row.custom_id, "line": row.line, "state": str(row.state), "choice": index}
    if choice is not None:
        record |= {"text": choice.text, "reasoning": choice.reasoning, "finish_reason": choice.finish_reason}
        record["completion_tokens"] = _tokens([choice])
    return record


def _tokens(choices: Sequence[Choice]) -> int:
    return sum(len(choice.token_ids) for choice in choices)


def texts_of(row: RecordedRequest) -> list[str]:
    """A text for each choice that was asked for; empty where there is none."""
    texts = [choice.text for choice in _choices(row)]
    return texts + [""] * (row.body.n - len(texts))


def _choices(row: RecordedRequest) -> list[Choice]:
    """What was generated, also what a cancelled request had; empty if there is no answer."""
    return [] if row.result is None or row.result.error is not None else row.result.choices


def _said(choice: Choice) -> dict[str, Any]:
    said: dict[str, Any] = {"text": choice.text}
    if choice.reasoning is not None:
        said["reasoning"] = choice.reasoning
    said["finish_reason"] = choice.finish_reason
    if choice.matched_stop is not None:
        said["matched_stop"] = choice.matched_stop
    return said


def _brief(stats: JobStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in _STATS}


def _error(error: RequestError | None) -> dict[str, Any] | None:
    return None if error is None else error.model_dump()
