"""A request as one plain record: for JSON lines, CSV and Parquet, which need no OpenAI envelope."""

from typing import Any

from api.dataset.openai_line import error_of
from api.ledger.records import RecordedRequest
from api.schemas import JobStats, RequestError

_STATS = ("wall_ms", "ttft_ms", "decode_tps", "e2e_tps", "tokens_per_pass", "acceptance", "drafter")

# Columns of CSV and Parquet, in order, with the type of their values; every column may be empty.
COLUMNS: dict[str, type] = {
    "custom_id": str,
    "line": int,
    "state": str,
    "text": str,
    "reasoning": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "completion_tokens": int,
    "wall_ms": float,
    "decode_tps": float,
    "error_code": str,
    "error_message": str,
}


def json_row(row: RecordedRequest) -> dict[str, Any]:
    """The record of a JSON line. text is null where there is no answer; error is null where there is one."""
    result, answer = row.result, text_of(row)
    record: dict[str, Any] = {"custom_id": row.custom_id, "line": row.line, "state": str(row.state), "text": answer}
    if result is not None and result.reasoning is not None:
        record["reasoning"] = result.reasoning
    record["finish_reason"] = None if result is None else result.finish_reason
    if result is not None and result.matched_stop is not None:
        record["matched_stop"] = result.matched_stop
    record["usage"] = None if result is None or result.usage is None else result.usage.model_dump()
    record["stats"] = None if row.stats is None else _brief(row.stats)
    record["error"] = _error(error_of(row))
    if result is not None and result.notes:
        record["notes"] = result.notes
    return record


def table_row(row: RecordedRequest) -> dict[str, Any]:
    """The record of a table: COLUMNS, None where there is nothing."""
    result, error = row.result, error_of(row)
    usage = result.usage if result is not None else None
    return {
        "custom_id": row.custom_id,
        "line": row.line,
        "state": str(row.state),
        "text": text_of(row),
        "reasoning": result.reasoning if result is not None else None,
        "finish_reason": result.finish_reason if result is not None else None,
        "prompt_tokens": usage.prompt_tokens if usage is not None else None,
        "completion_tokens": usage.completion_tokens if usage is not None else None,
        "wall_ms": row.stats.wall_ms if row.stats is not None else None,
        "decode_tps": row.stats.decode_tps if row.stats is not None else None,
        "error_code": error.code if error is not None else None,
        "error_message": error.message if error is not None else None,
    }


def text_of(row: RecordedRequest) -> str | None:
    """The text that was generated: also the part that a cancelled request had; None if there is none."""
    return None if row.result is None or row.result.error is not None else row.result.text


def _brief(stats: JobStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in _STATS}


def _error(error: RequestError | None) -> dict[str, Any] | None:
    return None if error is None else error.model_dump()
