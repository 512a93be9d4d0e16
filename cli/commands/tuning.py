"""What speculation costs and gives on this machine: measure the cost of passes, compare with plain decoding."""

from __future__ import annotations

import typer

from cli.commands.fleet import load_engine
from cli.options import DataDir, Drafter, Model, Workspace


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill calibrate --model mlx-community/Qwen3-4B-4bit")(calibrate)


def calibrate(model: Model = None, drafter: Drafter = None, data_dir: DataDir = None) -> None:
    """Measure again what a verification pass and a draft cost on this machine, show it, and keep it.

    A worker measures by itself when it first meets a model, and when passes have become faster or slower since. Do it
    by hand to see the curve: a tree of n nodes pays when it yields more tokens than its pass costs passes over one.
    """
    from cli.cost_view import draft_rows, pass_rows, show_costs
    from cli.prechecks import check_model
    from cli.prompts import shipped_requests

    workspace = Workspace(data_dir=data_dir, model=model, drafter=drafter)
    check_model(workspace.settings.model, runs_here=True)
    engine = load_engine(workspace, fresh=True)
    for _, request in shipped_requests(max_tokens=32):
        engine.generate(request)
        engine.upkeep()
    engine.close()
    show_costs(pass_rows(engine), draft_rows(engine))
