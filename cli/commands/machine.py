"""This machine: its models, its settings, and whether all is well."""

from __future__ import annotations

from typing import Annotated

import typer

from api.errors import ExitCode
from cli.options import DataDir, Model, RedisUrl, Workspace


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill models")(models)
    app.command(epilog="Example: CIDERMILL_MODEL=smollm2@bfloat16 cidermill config")(config)
    app.command(epilog="Example: cidermill doctor --kernels")(doctor)


def models(data_dir: DataDir = None) -> None:
    """List the models that are on this machine, as --model takes them, and the drafters, as --drafter does."""
    from cli.inventory import installed_models
    from cli.output import emit

    rows = installed_models(Workspace(data_dir=data_dir).settings.data_dir)
    emit(rows, {"model": "model", "kind": "kind", "size_mb": "MB", "path": "path"})


def config(model: Model = None, redis: RedisUrl = None, data_dir: DataDir = None) -> None:
    """Show every setting, its value, and where it came from: flag > environment > TOML file > default."""
    from api.settings import config_path, explain_settings
    from cli.output import emit

    workspace = Workspace(data_dir=data_dir, redis=redis, model=model)
    rows = [origin.model_dump() for origin in explain_settings(workspace.settings, **workspace.flags)]
    emit(rows, {"name": "setting", "value": "value", "source": "from", "description": "meaning"})
    path = config_path()
    typer.echo(f"file: {path}" if path.is_file() else f"file: {path}, which does not exist", err=True)


def doctor(
    model: Model = None,
    redis: RedisUrl = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="Check and time the kernels instead.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Check what running needs: storage, ledger, Redis, MLX, the model. Exits with 1 when something is missing.

    With --kernels: tries each kernel that is written for this machine's GPU in each configuration, from the start: is
    it right, also at the size of a verification pass, and how long does a call take beside MLX's own operations? The
    table, or a JSON line for each configuration, says which variant is used and why not another; workers with the
    same --data-dir go by it. Takes some minutes. Exits with 1 when a variant does not run that ought to. For example:
    cidermill doctor --kernels | jq 'select(.kernel == "qmm")'
    """
    from cli.diagnosis import checks
    from cli.output import emit

    if kernels:
        from cli.kernel_view import show_kernels

        if not show_kernels(Workspace(data_dir=data_dir).settings.data_dir):
            raise typer.Exit(ExitCode.INVALID_INPUT)
        return
    rows = checks(Workspace(data_dir=data_dir, redis=redis, model=model))
    emit(rows, {"check": "check", "state": "state", "found": "found"})
    if any(row["state"] == "missing" for row in rows):
        raise typer.Exit(ExitCode.INVALID_INPUT)
