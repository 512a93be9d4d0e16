"""The cost curve of a machine, as a table and a plot for people and as JSON lines for programs."""

from __future__ import annotations

import shutil
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

import typer

from cli.cost_plot import cost_plot
from cli.output import emit, emit_json, piped

if TYPE_CHECKING:
    from worker.engine.engine import Engine

PLOT_TITLE = "what a pass over n nodes costs, in passes over one: a tree pays when it yields more tokens than that"
DRAFT_COLUMNS = {"drafter": "drafter", "drafts": "drafts", "milliseconds": "ms", "ratio": "at most, of one pass"}
# All measured counts have columns of their own.
NARROWEST, WIDEST = 60, 100
Row = dict[str, Any]


def pass_rows(engine: Engine) -> list[Row]:
    """A row per measured node count: milliseconds of a pass, and its ratio to a pass over one node."""
    curve = engine.profile.curve
    return [_row(engine, "pass", {"nodes": nodes}, curve.cost(nodes)) for nodes in curve.nodes]


def draft_rows(engine: Engine) -> list[Row]:
    """A row per drafter and number of its passes: the median of such drafts, and its ratio to a pass of the target."""
    from worker.engine.drafters.mixture import members_of

    costs = zip(members_of(engine.drafter), engine.speculation.panel.members, strict=True)
    return [
        _row(engine, "draft", {"passes": passes}, median(times)) | {"drafts": len(times), "drafter": drafter.name}
        for drafter, member in costs
        for passes, times in member.cost.samples.items()
    ]


def show_costs(passes: list[Row], drafts: list[Row]) -> None:
    """Print the rows; people get what all rows have in common above them."""
    if piped():
        for row in [*passes, *drafts]:
            emit_json(row)
        return
    first = passes[0]
    typer.echo(
        f"{first['model']} ({first['quantization']}), verified in {first['verification']} mode\n"
        f"{first['chip']}, power {first['power']}, mlx {first['mlx']}, kernels {first['kernels']}\n"
    )
    emit(passes, {"nodes": "nodes", "milliseconds": "ms", "ratio": "passes over one node"})
    if len(passes) > 1:
        width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
        typer.echo(f"\n{PLOT_TITLE}\n{cost_plot([(row['nodes'], row['ratio']) for row in passes], width)}")
    if drafts:
        typer.echo()
        emit((summary(list(own)) for _, own in groupby(drafts, key=lambda row: row["drafter"])), DRAFT_COLUMNS)


def summary(drafts: list[Row]) -> Row:
    """The cheapest and the dearest drafts of one drafter, by its passes."""
    cheap, dear = (pick(drafts, key=lambda row: row["milliseconds"]) for pick in (min, max))
    spans = [f"{row['milliseconds']:.2f} ({_passes(row)})" for row in (cheap, dear)]
    return {
        "drafter": cheap["drafter"],
        "drafts": sum(row["drafts"] for row in drafts),
        "milliseconds": " to ".join(dict.fromkeys(spans)),
        "ratio": f"{dear['ratio']:.1%}",
    }


def _passes(draft: Row) -> str:
    passes: int = draft["passes"]
    return f"{passes} {'pass' if passes == 1 else 'passes'}"


def _row(engine: Engine, what: str, size: dict[str, int], milliseconds: float) -> Row:
    from worker.engine.profile import profile_key

    key = profile_key(engine.target, engine.options.max_tree_nodes)
    facts = {name: key[name] for name in ("model", "quantization", "chip", "power", "mlx", "kernels")}
    return {
        "measured": what,
        **size,
        "milliseconds": round(milliseconds, 4),
        "ratio": round(milliseconds / engine.profile.curve.cost(1), 4),
        "verification": engine.verifier.mode,
        **facts,
    }
