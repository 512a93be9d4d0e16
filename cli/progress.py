"""What `run` shows while it works: finished requests as they come, a bar with ETA and tokens/s, the text so far."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cli.output import counted, emit_json, excerpt, piped, printable
from cli.summary import LIMITS

if TYPE_CHECKING:
    from pathlib import Path

    from api.ledger.records import RecordedRequest
    from api.schemas import RequestCounts, WorkerInfo

TEXT_WIDTH = 72


class Display(Protocol):
    """A view of a running batch."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *_: object) -> None: ...
    def say(self, message: str) -> None:
        """One line about what happens."""

    def start(self, counts: RequestCounts) -> None:
        """The batch as it stands when work begins."""

    def finished(self, row: RecordedRequest) -> None:
        """A request has become final."""

    def tick(self, worker: WorkerInfo | None) -> None:
        """Some time has passed; `worker` is one that is generating."""


def display(answers: Path | None) -> Display:
    """The view that fits standard output. Where the answers go there (None), the lines go to standard error."""
    return Lines(sys.stderr if answers is None else sys.stdout) if piped() else Bar()


class Lines:
    """For programs: a JSON line per finished request; messages go to stderr."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def start(self, counts: RequestCounts) -> None:
        before = f", {counts.finished} of them final before" if counts.finished else ""
        self.say(f"{counted(counts.total, 'request')}{before}")

    def finished(self, row: RecordedRequest) -> None:
        emit_json({"event": "finished", **brief(row)}, self._stream)

    def tick(self, worker: WorkerInfo | None) -> None:
        pass


class Bar:
    """For people."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(highlight=False)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[writing]}", style="dim", markup=False),  # a model's text may look like markup
            console=self._console,
            transient=True,
            speed_estimate_period=300,
        )
        self._task = self._progress.add_task("waiting", total=None, rate="", writing="")
        self._tokens = 0
        self._since = time.monotonic()

    def __enter__(self) -> Bar:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        self._console.print(printable(message), style="dim", markup=False)

    def start(self, counts: RequestCounts) -> None:
        self._progress.update(self._task, description="generating", total=counts.total, completed=counts.finished)
        self._since = time.monotonic()

    def finished(self, row: RecordedRequest) -> None:
        from rich.text import Text

        tokens = row.result.usage.completion_tokens if row.result and row.result.usage else 0
        self._tokens += tokens
        good = row.result is not None and row.result.error is None
        line = Text.assemble(
            ("✓ " if good else "✗ ", "green" if good else "red"),
            (excerpt(row.custom_id, TEXT_WIDTH), "bold"),
            " ",
            (_facts(row), "dim"),
        )
        self._console.print(line)
        self._console.print(Text("  " + excerpt(_said(row), TEXT_WIDTH)))
        self._progress.advance(self._task)
        self._show_rate(self._tokens)

    def tick(self, worker: WorkerInfo | None) -> None:
        self._show_rate(self._tokens + (worker.tokens if worker else 0))
        self._progress.update(self._task, writing=_tail(worker.tail if worker else "", self._console.width - 78))

    def _show_rate(self, tokens: int) -> None:
        spent = time.monotonic() - self._since
        if tokens and spent > 1:
            self._progress.update(self._task, rate=f"{tokens / spent:.1f} tok/s")


def brief(row: RecordedRequest) -> dict[str, Any]:
    """The few facts of a request that a line can show."""
    result, stats = row.result, row.stats
    facts: dict[str, Any] = {"request_id": row.request_id, "custom_id": row.custom_id, "state": str(row.state)}
    if result and result.error:
        facts["error"] = {"code": result.error.code, "message": result.error.message}
    elif result:
        facts["finish_reason"] = result.finish_reason
        if row.body.n > 1:
            facts["choices"] = len(result.choices)
        facts["completion_tokens"] = result.usage.completion_tokens if result.usage else 0
        facts["text"] = result.text
    if stats:
        facts["decode_tps"] = _rounded(stats.decode_tps)
        facts["tokens_per_pass"] = _rounded(stats.tokens_per_pass)
        facts["acceptance"] = _rounded(stats.acceptance)
    return facts


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _facts(row: RecordedRequest) -> str:
    facts = brief(row)
    if "completion_tokens" not in facts:
        return str(row.state)
    assert row.result
    parts = [f"{facts['completion_tokens']} tokens"]
    if row.body.n > 1:
        unbegun = f" of {row.body.n}" if facts["choices"] < row.body.n else ""
        parts[0] += f" in {facts['choices']}{unbegun} choices"
    if facts.get("decode_tps"):
        parts.append(f"{facts['decode_tps']:.1f} tok/s")
    if facts.get("tokens_per_pass"):
        parts.append(f"{facts['tokens_per_pass']:.2f} tokens per pass")
    reasons = [choice.finish_reason for choice in row.result.choices]
    parts += [f"cut short: {limit}" for limit in LIMITS if limit in reasons]
    return ", ".join(parts)


def _said(row: RecordedRequest) -> str:
    if row.result is None:
        return ""
    return row.result.error.message if row.result.error else row.result.text


def _tail(text: str, width: int) -> str:
    line = printable(" ".join(text.split()))
    return f"“…{line[-width:]}" if line and width >= 12 else ""
