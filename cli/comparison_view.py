"""A comparison of configurations, as a table for people and as JSON lines for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from cli.output import emit, emit_json, piped

if TYPE_CHECKING:
    from worker.engine.adoption import Adoption
    from worker.engine.comparison import Measurement, Summary
    from worker.engine.engine import Engine
    from worker.engine.plain_text import Parity

_COLUMNS = {
    "kind": "prompts",
    "configuration": "decoding",
    "rate": "tok/s",
    "rates": "runs",
    "ratio": "of plain",
    "acceptance": "acceptance",
    "tokens_per_pass": "tokens per pass",
    "texts": "same text",
}
_SWEEP_COLUMNS = {
    "kind": "prompts",
    "configuration": "drafted tokens",
    "rate": "tok/s",
    "ratio": "of plain",
    "acceptance": "acceptance",
    "tokens_per_pass": "tokens per pass",
    "texts": "same text",
    "memory": "memory",
}


def begin(engine: Engine, prompts: int, runs: int) -> None:
    """What is about to be measured, and where."""
    from worker.engine.profile import profile_key

    key = profile_key(engine.target, engine.options.max_tree_nodes)
    facts = {name: key[name] for name in ("model", "quantization", "chip", "power", "mlx", "mlx_lm", "kernels")}
    if piped():
        more = {"verification": engine.verifier.mode, "drafter": engine.drafter.name, "prompts": prompts, "runs": runs}
        emit_json({"event": "begin", **facts, **more})
        return
    typer.echo(
        f"{facts['model']} ({facts['quantization']}), drafter {engine.drafter.name}, "
        f"verified in {engine.verifier.mode} mode\n"
        f"{facts['chip']}, power {facts['power']}, mlx {facts['mlx']}, kernels {facts['kernels']}\n"
        f"{prompts} prompts, {runs} runs"
    )


def show_measurement(one: Measurement, runs: int) -> None:
    """One more measurement: a JSON line, or a line of progress."""
    stats = one.stats
    if piped():
        emit_json({"event": "measured", **dataclasses.asdict(one), "stats": stats.model_dump()})
        return
    rate = "-" if stats.decode_tps is None else f"{stats.decode_tps:.1f} tok/s"
    typer.echo(f"run {one.run} of {runs}, {one.prompt}, {one.configuration}: {rate}, {one.parity}", err=True)


def show_summaries(found: Sequence[Measurement], *, is_sweep: bool) -> None:
    """The configurations over each kind of prompts, and over all of them."""
    from worker.engine.comparison import summarise

    kinds = list(dict.fromkeys(one.kind for one in found))
    parts = [summarise(found, kind) for kind in kinds] if len(kinds) > 1 else []
    summaries = [summary for part in [*parts, summarise(found)] for summary in part]
    if piped():
        for summary in summaries:
            emit_json({"event": "summary", **dataclasses.asdict(summary)})
        return
    typer.echo("")
    emit([cells(summary) for summary in summaries], _SWEEP_COLUMNS if is_sweep else _COLUMNS)
    if not is_sweep:
        typer.echo("")
        for summary in summarise(found):
            typer.echo(resources(summary))


def show_verdict(drafter: str, verdict: Adoption) -> None:
    if piped():
        facts = dataclasses.asdict(verdict) | {"adopted": verdict.is_adopted}
        emit_json({"event": "verdict", "drafter": drafter, **facts})
    else:
        typer.echo(f"\ndrafter {drafter}: {verdict}")


def cells(summary: Summary) -> dict[str, Any]:
    """The cells of a summary's row."""
    return {
        "kind": f"{summary.kind or 'other'} ({summary.prompts})",
        "configuration": summary.configuration,
        "rate": _number(summary.decode_tps, 1),
        "rates": ", ".join(f"{rate:.1f}" for rate in summary.runs),
        "ratio": _number(summary.ratio, 2),
        "acceptance": "-" if summary.acceptance is None else f"{summary.acceptance:.0%}",
        "tokens_per_pass": _number(summary.tokens_per_pass, 2),
        "texts": texts(summary.parity),
        "memory": _megabytes(summary),
    }


def resources(summary: Summary) -> str:
    """A line of what a configuration took."""
    first = "-" if summary.ttft_ms is None else f"{summary.ttft_ms / 1000:.2f} s"
    return f"{summary.configuration}: first token {first}, memory {_megabytes(summary)}, {phases(summary.phases_ms)}"


def texts(parity: dict[Parity, int]) -> str:
    """How many texts are plain decoding's, and how many only all but."""
    ties = f", {parity['near tie']} near ties" if parity["near tie"] else ""
    return f"{parity['same']}/{sum(parity.values())}{ties}"


def phases(spent: dict[str, float]) -> str:
    """Shares of the wall, without those that round to nothing."""
    total = sum(spent.values())
    shares = {name: one / total for name, one in spent.items()} if total else {}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)


def _megabytes(summary: Summary) -> str:
    return f"{summary.peak_memory_bytes / 2**20:.0f} MB"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
