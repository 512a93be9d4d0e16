"""The fleet's workers: look at them, and give them orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from api.errors import QueueError
from cli.options import DataDir, RedisUrl, Workspace, canonical_model

if TYPE_CHECKING:
    from redis import Redis

    from api.queue.orders import Order

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names of workers, as cidermill workers shows them.", show_default=False),
]
Everybody = Annotated[bool, typer.Option("--all", help="All that live now; one that starts later is not meant.")]
OfModel = Annotated[
    str | None, typer.Option("--model", "-m", help="With --all: those of this model.", show_default=False)
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done, and not when it is ordered.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill workers")(workers)


def register_orders(group: typer.Typer) -> None:
    group.command(epilog="Example: cidermill worker drain mini-812-3fa9c1 --wait")(drain)
    group.command(epilog="Example: cidermill worker pause --all --model mlx-community/Qwen3-4B-4bit")(pause)
    group.command(epilog="Example: cidermill worker resume --all")(resume)


def workers(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Of this model alone.", show_default=False)] = None,
    redis: RedisUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the fleet: every live worker, and those that died within a day (the latest 50)."""
    from api.queue.presence import live_workers
    from cli.fleet_view import COLUMNS, fleet_rows, shown_row, unserved
    from cli.output import emit, piped, printable

    workspace = Workspace(data_dir=data_dir, redis=redis)
    connection = _reach(workspace)
    rows = fleet_rows(connection, canonical_model(model) if model else None)
    emit(rows if piped() else map(shown_row, rows), COLUMNS)
    for sentence in unserved(workspace.queue(connection).demand(), live_workers(connection)):
        typer.echo(printable(sentence), err=True)


def drain(
    names: Names = None,
    everybody: Everybody = False,
    model: OfModel = None,
    wait: Wait = False,
    redis: RedisUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let workers finish the request that they run, take no other, and end with exit code 0.

    That takes as long as the request does, and is not taken back. A worker that is started again works.
    """
    from api.queue.orders import Order

    _order(Order.DRAIN, names, everybody, model, wait, Workspace(data_dir=data_dir, redis=redis))


def pause(
    names: Names = None,
    everybody: Everybody = False,
    model: OfModel = None,
    wait: Wait = False,
    redis: RedisUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let workers finish the request that they run and take no other, with the model kept in memory.

    They stay paused until `resume`; a worker that is started again works.
    """
    from api.queue.orders import Order

    _order(Order.PAUSE, names, everybody, model, wait, Workspace(data_dir=data_dir, redis=redis))


def resume(
    names: Names = None,
    everybody: Everybody = False,
    model: OfModel = None,
    wait: Wait = False,
    redis: RedisUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let paused workers take requests again, and the machines of those that are out.

    A machine on which three workers in a row have died takes itself out; one of its workers named here lets it in.
    """
    from api.queue.orders import Order

    _order(Order.WORK, names, everybody, model, wait, Workspace(data_dir=data_dir, redis=redis))


def _order(
    order: Order, names: list[str] | None, everybody: bool, model: str | None, wait: bool, workspace: Workspace
) -> None:
    from cli.orders import addressees, await_order, give
    from cli.output import emit

    if names and everybody:
        raise typer.BadParameter("names of workers and --all exclude each other: give one of the two")
    if not names and not everybody:
        raise typer.BadParameter("give names of workers, or --all")
    if model is not None and not everybody:
        raise typer.BadParameter("--model goes with --all")
    connection = _reach(workspace)
    found = addressees(
        connection, order, names or [], everybody=everybody, model=canonical_model(model) if model else None
    )
    give(connection, found, order)
    states: dict[str, str] = {info.name: info.state for info in found}
    if wait:
        told = await_order(connection, list(states), order, lambda line: typer.echo(line, err=True))
        states = {name: info.state if info else "ended" for name, info in told.items()}
    rows = [
        {"name": info.name, "host": info.host, "model": info.model, "order": order.value, "state": states[info.name]}
        for info in found
    ]
    emit(rows, {"name": "worker", "host": "host", "model": "model", "order": "order", "state": "state"})


def _reach(workspace: Workspace) -> Redis:
    connection = workspace.reach()
    if connection is None:
        raise QueueError(
            "no Redis is configured and no `cidermill run` is under way here; give --redis URL or set "
            "CIDERMILL_REDIS_URL or CIDERMILL_REDIS_URL_FILE"
        )
    return connection
