"""The cost curve of a machine, as a table with bars for people and as JSON lines for programs."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import typer

from cli.output import emit, emit_json, piped

if TYPE_CHECKING:
    from worker.engine.engine import Engine

PLOT_WIDTH = 48
Row = dict[str, Any]


def pass_rows(engine: Engine) -> list[Row]:
    """A row per measured node count: milliseconds of a pass, and its ratio to a pass over one node."""
    curve = engine.profile.curve
    return [_row(engine, "pass", nodes, curve.cost(nodes)) for nodes in curve.nodes]


def draft_rows(engine: Engine) -> list[Row]:
    """A row per size of the drafts that were made: the median of their milliseconds, and its ratio to a plain pass."""
    samples = engine.speculation.cost.samples
    return [
        _row(engine, "draft", nodes, median(times)) | {"drafts": len(times), "drafter": engine.drafter.name}
        for nodes, times in samples.items()
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
    most = max(row["ratio"] for row in passes)
    shown = [row | {"bar": bar(row["ratio"], most)} for row in passes]
    columns = {
        "nodes": "nodes",
        "milliseconds": "ms",
        "ratio": "of one node",
        "bar": "a tree pays beyond so many tokens",
    }
    emit(shown, columns)
    if drafts:
        typer.echo(f"\n{draft_sentence(drafts)}")


def bar(ratio: float, most: float) -> str:
    """A bar with a mark at every whole number: `----1--` is about one and a half."""
    scale = PLOT_WIDTH / max(most, 2.0)
    marks = {round(number * scale): number for number in range(1, int(ratio + 1e-9) + 1)}
    length = max(1, round(ratio * scale))
    return "".join(str(marks[place] % 10) if place in marks else "-" for place in range(1, length + 1))


def draft_sentence(drafts: list[Row]) -> str:
    """The cheapest and the dearest size of a draft."""
    cheap, dear = (pick(drafts, key=lambda row: row["milliseconds"]) for pick in (min, max))
    return (
        f"a draft by {cheap['drafter']} takes {cheap['milliseconds']:.2f} ms (of {cheap['nodes']} nodes) to "
        f"{dear['milliseconds']:.2f} ms (of {dear['nodes']}), at most {dear['ratio']:.1%} of a plain pass; "
        f"{sum(row['drafts'] for row in drafts)} drafts"
    )


def _row(engine: Engine, what: str, nodes: int, milliseconds: float) -> Row:
    from worker.engine.profile import profile_key

    key = profile_key(engine.target, engine.options.max_tree_nodes)
    facts = {name: key[name] for name in ("model", "quantization", "chip", "power", "mlx", "kernels")}
    return {
        "measured": what,
        "nodes": nodes,
        "milliseconds": round(milliseconds, 4),
        "ratio": round(milliseconds / engine.profile.curve.cost(1), 4),
        "verification": engine.verifier.mode,
        **facts,
    }
