"""The summary at the end of a batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TextIO

from cli.output import counted, duration, emit_json, piped, printable

if TYPE_CHECKING:
    from pathlib import Path

    from api.ledger.records import BatchStats, WorkerShare
    from api.schemas import Batch


# Finish reasons of texts that a limit of their request has ended.
LIMITS = ("time_limit", "repetition")


def show_summary(batch: Batch, stats: BatchStats, output: Path | None, stream: TextIO | None = None) -> None:
    """Requests by state, tokens, rates, acceptance and phases: lines for people, one JSON line for programs.

    stream: of the JSON line, where standard output is taken.
    """
    if piped():
        emit_json({"event": "summary", **summary_row(batch, stats, output)}, stream)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for name, value in summary_lines(batch, stats, output):
        console.print(Text.assemble((f"{name:>14}", "bold"), "  ", printable(value)))


def summary_row(batch: Batch, stats: BatchStats, output: Path | None) -> dict[str, Any]:
    facts = dataclasses.asdict(stats) | {"counts": stats.counts.model_dump()}
    return {"batch": batch.id, "state": str(batch.state), "model": batch.model, "output": str(output or ""), **facts}


def summary_lines(batch: Batch, stats: BatchStats, output: Path | None) -> list[tuple[str, str]]:
    """(name, value) of each line."""
    states = ", ".join(f"{count} {state}" for state, count in stats.counts.model_dump().items() if count)
    lines = [
        ("batch", f"{batch.id} ({batch.state})"),
        ("requests", states or "none"),
        (
            "tokens",
            f"{stats.prompt_tokens} prompt ({stats.cached_prompt_tokens} from the cache), "
            f"{stats.completion_tokens} completion",
        ),
        ("speed", f"{_number(stats.decode_tps)} tok/s decoding, {_number(stats.e2e_tps)} tok/s end to end per worker"),
        (
            "speculation",
            f"acceptance {_percent(stats.acceptance)} ({stats.accepted_tokens} of {stats.drafted_tokens} drafted"
            f"{_forced(stats.forced_tokens)}), "
            f"{_number(stats.tokens_per_pass, 2)} tokens per pass{_verification(stats.verification)}"
            f"{_collapses(stats.acceptance_collapses)}",
        ),
        ("phases", _phases(stats.phases_ms)),
        ("wall", duration(stats.wall_seconds) if stats.wall_seconds is not None else "-"),
    ]
    cut_short = {reason: count for reason, count in stats.finish_reasons.items() if reason in LIMITS}
    for name, counts in (("cut short", cut_short), ("failures", stats.failures)):
        if counts:
            lines.append((name, _counts(counts)))
    lines += [("note", f"{counted(count, 'request')}: {note}") for note, count in stats.notes.items()]
    if len(stats.workers) > 1:
        lines += [("worker", _share(worker)) for worker in stats.workers]
    if output is not None:
        lines.append(("output", str(output)))
    return lines


def _verification(modes: dict[str, int]) -> str:
    """The one way in which all drafts were verified, else how many requests went each way."""
    return f", verification {next(iter(modes)) if len(modes) == 1 else _counts(modes)}" if modes else ""


def _forced(tokens: int) -> str:
    """Said only of a batch whose acceptance rule has overruled draws."""
    return f", {tokens} against the draw" if tokens else ""


def _collapses(requests: int) -> str:
    return f", acceptance collapsed in {counted(requests, 'request')}" if requests else ""


def _share(worker: WorkerShare) -> str:
    return (
        f"{worker.worker}: {counted(worker.requests, 'request')}, {worker.completion_tokens} tokens, "
        f"{_number(worker.decode_tps)} tok/s decoding"
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _phases(phases: dict[str, float]) -> str:
    total = sum(phases.values())
    return ", ".join(f"{name} {100 * spent / total:.0f} %" for name, spent in phases.items()) if total else "-"
