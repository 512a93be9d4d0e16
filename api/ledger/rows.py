"""A generation's answer and measurements as one flat row of `results`, and back."""

import math
from typing import Any

from pydantic import BaseModel, TypeAdapter
from sqlalchemy import REAL, Integer

from api.ledger.columns import LONGEST_MS, SQLITE_INTEGERS, TOKENS
from api.ledger.tables import RESULTS
from api.schemas import Choice, GenerationResult, JobStats, Phases, RequestError, RequestEvent, TokenLogprob, Usage

_LOGPROBS = TypeAdapter(list[TokenLogprob])
_CHOICES = TypeAdapter(list[Choice])
_NUMBERS = tuple(column.name for column in RESULTS.columns if isinstance(column.type, (Integer, REAL)))
_PHASES = tuple(Phases.model_fields)
_USAGE = tuple(Usage.model_fields)
_STATS = tuple(name for name in JobStats.model_fields if name not in ("phases", "budgets"))


def event_row(event: RequestEvent) -> dict[str, Any]:
    """The row of a finished event. A row that SQLite cannot hold becomes a failed result that says why."""
    assert event.result is not None
    row = result_row(event.result, event.stats, worker=event.worker, attempt=event.attempt)
    row["request_id"] = event.request_id
    bad = _unstorable(row)
    if bad is None:
        return row
    message = f"the result of worker {event.worker} was refused: {bad} is {row[bad]}, which the ledger cannot hold"
    return failed_row(event.request_id, RequestError(code="invalid_result", message=message, status=500), event.worker)


def failed_row(request_id: str, error: RequestError, worker: str | None) -> dict[str, Any]:
    """The row of a request that has an error and nothing else."""
    return result_row(GenerationResult(request_id=request_id, error=error), None, worker=worker, attempt=None)


def result_row(
    result: GenerationResult, stats: JobStats | None, *, worker: str | None, attempt: int | None
) -> dict[str, Any]:
    """Every column of `results`; NULL where there was nothing to tell."""
    row: dict[str, Any] = dict.fromkeys(column.name for column in RESULTS.columns)
    row |= {"request_id": result.request_id, "worker": worker, "attempt": attempt}
    row |= {"text": result.text, "reasoning": result.reasoning, "finish_reason": result.finish_reason}
    row |= _stop_columns(result.matched_stop)
    row |= {f"error_{name}": value for name, value in _fields(result.error)}
    row |= dict(_fields(result.usage))
    row |= {"token_ids": result.token_ids, "notes": result.notes}
    row["logprobs"] = None if result.logprobs is None else _LOGPROBS.dump_python(result.logprobs, mode="json")
    row["further_choices"] = _CHOICES.dump_python(result.further_choices, mode="json") or None
    row["sampling"] = {name: value.model_dump(mode="json") for name, value in result.sampling.items()}
    if stats is not None:
        row |= {name: getattr(stats, name) for name in _STATS}
        row |= {f"{phase}_ms": getattr(stats.phases, phase) for phase in _PHASES}
        row["budgets"] = stats.budgets
    return row


def result_of(row: Any) -> GenerationResult:
    """The result in a row of `results`."""
    error = None
    if row.error_code is not None:
        error = RequestError(code=row.error_code, message=row.error_message, status=row.error_status)
    return GenerationResult(
        request_id=row.request_id,
        text=row.text,
        reasoning=row.reasoning,
        finish_reason=row.finish_reason,
        matched_stop=row.matched_stop if row.matched_stop_token is None else row.matched_stop_token,
        token_ids=row.token_ids,
        logprobs=None if row.logprobs is None else _LOGPROBS.validate_python(row.logprobs),
        further_choices=_CHOICES.validate_python(row.further_choices or []),
        usage=None if row.prompt_tokens is None else Usage(**{name: getattr(row, name) for name in _USAGE}),
        error=error,
        sampling=row.sampling,
        notes=row.notes,
    )


def stats_of(row: Any) -> JobStats | None:
    """The measurements in a row of `results`; None where nothing ran."""
    if row.wall_ms is None:
        return None
    return JobStats(
        **{name: getattr(row, name) for name in _STATS},
        phases=Phases(**{phase: getattr(row, f"{phase}_ms") for phase in _PHASES}),
        budgets={int(nodes): passes for nodes, passes in row.budgets.items()},
    )


def _fields(model: BaseModel | None) -> list[tuple[str, Any]]:
    return [] if model is None else list(model)


def _stop_columns(stop: str | int | None) -> dict[str, str | int | None]:
    if isinstance(stop, int):
        return {"matched_stop_token": stop}
    return {"matched_stop": stop}


def _unstorable(row: dict[str, Any]) -> str | None:
    """The first column whose number the ledger cannot hold, or not add up with those of other results."""
    return next((name for name in _NUMBERS if row[name] is not None and not _storable(name, row[name])), None)


def _storable(name: str, value: float) -> bool:
    if isinstance(value, float):
        return 0 <= value <= LONGEST_MS if name.endswith("_ms") else math.isfinite(value)
    return value in (TOKENS if name.endswith(("_tokens", "passes")) else SQLITE_INTEGERS)
