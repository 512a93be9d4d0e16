"""The long-running processes of a fleet: a worker on each Mac, one recorder beside the ledger."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from api.errors import NotFoundError
from cli.commands.workers import register_orders
from cli.log import log_transitions
from cli.options import DataDir, Drafter, Kernels, LogFormat, Model, RedisUrl, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from worker.engine.engine import Engine
    from worker.engine.selection import Adopt

logger = logging.getLogger("cidermill.process")


def register(app: typer.Typer) -> None:
    group = typer.Typer(subcommand_metavar="[drain|pause|resume] ...")
    group.callback(
        invoke_without_command=True,
        epilog="Example: cidermill worker --model mlx-community/Qwen3-4B-4bit",
    )(worker)
    register_orders(group)
    app.add_typer(group, name="worker")
    app.command(epilog="Example: cidermill record --log-format json")(record)


def worker(
    context: typer.Context,
    model: Model = None,
    drafter: Drafter = None,
    kernels: Kernels = None,
    redis: RedisUrl = None,
    data_dir: DataDir = None,
    log_format: LogFormat = None,
    wait: Annotated[bool, typer.Option("--wait", help="Start even when requests wait for other models only.")] = False,
    stop_with_parent: Annotated[bool, typer.Option("--stop-with-parent", hidden=True)] = False,
) -> None:
    """Serve one model: take requests from the queue, generate, return results, until told to stop.

    The first SIGTERM or Ctrl-C lets the running request finish, or hands it back; a second one hands it back at once.
    The commands below tell workers that are running, on whatever machine, what to do.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_of_a_worker(context)
        return
    engine = {"model": model, "drafter": drafter, "kernels": kernels}
    workspace = Workspace(data_dir=data_dir, redis=redis, log_format=log_format, **engine)
    settings = workspace.settings
    if not stop_with_parent:  # `run` shows its worker's lines to people, and each answer itself
        log_transitions(settings.log_format)
    connection = workspace.connect()
    if not wait:
        _check_demand(workspace, connection, settings.model)
    connection.close()
    from worker.process import serve

    say = _echo if stop_with_parent else logger.info
    serve(settings, lambda: load_engine(workspace, say=say), stop_with_parent=stop_with_parent)


def record(redis: RedisUrl = None, data_dir: DataDir = None, log_format: LogFormat = None) -> None:
    """Write results from Redis into the ledger, until told to stop. One recorder per ledger."""
    import signal
    import threading

    from api.recorder import Recorder, reader_of
    from cli.coordinator import only_one

    workspace = Workspace(data_dir=data_dir, redis=redis, log_format=log_format)
    log_transitions(workspace.settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    connection = workspace.connect()
    with only_one(workspace):
        logger.info("recording into %s", workspace.settings.ledger_path)
        reader = reader_of(workspace.ledger, connection, consumer="record")
        Recorder(workspace.ledger, workspace.queue(connection), reader).run(stop)


def _echo(message: str) -> None:
    typer.echo(message, err=True)


def load_engine(
    workspace: Workspace,
    *,
    fresh: bool = False,
    adopt: Adopt | None = None,
    say: Callable[[str], None] = _echo,
) -> Engine:
    """The engine of the settings' model.

    fresh: what was measured of it is measured again. adopt: not the setting's. say: told of what takes long.
    """
    from worker.engine.engine import Engine, EngineOptions
    from worker.engine.models import ModelSpec

    settings = workspace.settings
    options = EngineOptions(
        data_dir=settings.data_dir,
        drafter=settings.drafter,
        adopt=adopt or settings.adopt,
        max_tree_nodes=settings.max_tree_nodes,
        prefill_chunk=settings.prefill_chunk,
        default_max_tokens=settings.default_max_tokens,
        memory_limit_gb=settings.memory_limit_gb,
        prefix_cache_bytes=None if settings.prefix_cache_mb is None else settings.prefix_cache_mb * 2**20,
        batch_memory=settings.batch_memory,
        kernels=settings.kernels,
    )
    spec = ModelSpec.parse(settings.model)
    return Engine.load(spec, options, say, fresh=fresh)


def _refuse_options_of_a_worker(context: typer.Context) -> None:
    """They would be read and forgotten. Raises a usage error."""
    sources = [context.get_parameter_source(name) for name in context.params]
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise typer.BadParameter(
            f"options of {context.invoked_subcommand} go behind it: cidermill worker {context.invoked_subcommand} ..."
        )


def _check_demand(workspace: Workspace, connection: Redis, model: str) -> None:
    """Refuse to wait for a model that nobody asked for while requests wait for others."""
    demand = workspace.queue(connection).demand()
    if demand and model not in demand:
        others = ", ".join(f"{name} ({count})" for name, count in sorted(demand.items()))
        raise NotFoundError(
            f"no request waits for {model}; requests wait for {others}: "
            "start with --model for one of these, or with --wait to wait all the same"
        )
