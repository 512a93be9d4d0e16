"""Batches: submit them, look at them, take their results, cancel them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.errors import ExitCode, NotFoundError, QueueError
from api.states import OPEN_BATCH_STATES
from cli.commands.running import (
    Acceptance,
    Choices,
    Input,
    MaxTokens,
    OutputFormat,
    PriorityOption,
    ProfileOption,
    SkipInvalid,
    Temperature,
    TemplateOption,
)
from cli.expiry import Expires
from cli.named import request_named
from cli.options import BatchId, DataDir, Model, RedisUrl, Workspace
from cli.order import dataset_of, error_file, error_writer, model_of
from cli.output import counted, moment, piped, printable

if TYPE_CHECKING:
    from api.choices import Priority
    from api.schemas import Batch, WorkerInfo

OptionalBatch = Annotated[
    str | None,
    typer.Argument(metavar="BATCH", help="Batch id, the start of one, or 'latest'; without it, the newest batches."),
]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill submit prompts.jsonl -m mlx-community/Qwen3-4B-4bit")(submit)
    app.command(epilog="Example: cidermill status latest")(status)
    app.command(epilog="Example: cidermill results latest -o answers.csv --format csv")(results)
    app.command(epilog="Example: cidermill stats latest")(stats)
    app.command(epilog="Example: cidermill show batch_01J9ZK2V9E8QX4T6M3B7N5C1D0-17")(show)
    app.command(epilog="Example: cidermill cancel latest")(cancel)


def submit(
    input_path: Input,
    model: Model = None,
    template: TemplateOption = None,
    priority: PriorityOption = "normal",
    skip_invalid: SkipInvalid = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    n: Choices = None,
    profile: ProfileOption = None,
    acceptance: Acceptance = None,
    expires: Expires = None,
    redis: RedisUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Put a file of prompts on the queue of a fleet and return.

    The whole file is validated first; then the ledger has the batch, then Redis. Workers and `record` do the
    rest, and `results` writes the answers.
    """
    from redis.exceptions import RedisError

    from api.queue.presence import live_workers
    from api.submission import Order
    from api.submission import submit as enter
    from cli.prechecks import check_model

    workspace = Workspace(data_dir=data_dir, redis=redis, model=model, acceptance=acceptance)
    rule = workspace.settings.acceptance
    given = {"max_tokens": max_tokens, "temperature": temperature, "n": n, "acceptance": rule}
    dataset = dataset_of(workspace, input_path, template, profile, given)
    chosen = model_of(dataset, model, workspace.settings.model)
    check_model(chosen, runs_here=False)
    order = Order(
        dataset=dataset,
        model=chosen,
        priority=priority,
        skip_invalid=skip_invalid,
        expires_seconds=expires,
        on_invalid=error_writer(error_file(None, input_path), _say),
    )
    connection = workspace.connect()
    batch = enter(workspace.ledger, workspace.queue(connection), order)
    _emit_batches([batch])
    with suppress(RedisError):  # the batch is where it should be
        _say_what_is_missing(workspace, batch, live_workers(connection))


def status(batch: OptionalBatch = None, redis: RedisUrl = None, data_dir: DataDir = None) -> None:
    """Show batches by state, or one batch with its workers and its queue."""
    workspace = Workspace(data_dir=data_dir, redis=redis)
    if batch is None:
        listed = workspace.ledger.batches()
        _emit_batches(listed)
        open_ones = [one for one in listed if one.state in OPEN_BATCH_STATES]
        if open_ones and not _say_that_nothing_runs(workspace, open_ones[0]):
            _say_who_is_missing(workspace)
        return
    found = workspace.ledger.batch(workspace.ledger.resolve(batch))
    _emit_batches([found])
    if found.state in OPEN_BATCH_STATES and found.expires_at is not None and found.expires_at < time.time():
        _say(f"the deadline of {found.id} has passed: what is open of it expires while `cidermill record` runs")
    if found.state not in OPEN_BATCH_STATES or _say_that_nothing_runs(workspace, found):
        return
    connection = workspace.reach()
    if connection is not None:
        from api.queue.presence import live_workers

        live = live_workers(connection)
        _emit_fleet(workspace.queue(connection).depth(found.model), live, found.model)
        _say_what_is_missing(workspace, found, live)


def results(
    batch: BatchId = "latest",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; without it, standard output.")] = None,
    output_format: OutputFormat = "openai",
    data_dir: DataDir = None,
) -> None:
    """Write the answers of a batch, in input order; of an unfinished one those that are there.

    The exit code is 3 when some of its requests failed, were cancelled or expired.
    """
    from api.dataset.writer import write_results
    from api.states import FINAL_REQUEST_STATES
    from cli.output import leaving_reader

    if output_format == "parquet" and output is None and not piped():
        raise typer.BadParameter("parquet is not for a terminal; give a file: -o FILE", param_hint="--format")
    ledger = Workspace(data_dir=data_dir).ledger
    batch_id = ledger.resolve(batch)
    rows = ledger.results(batch_id, states=FINAL_REQUEST_STATES)
    with leaving_reader(sys.stdout):
        count = write_results(rows, output if str(output) != "-" else None, output_format)
        typer.echo(f"{counted(count, 'request')} written", err=True)
    counts = ledger.batch(batch_id).counts
    if counts.finished > counts.completed:
        raise typer.Exit(ExitCode.REQUESTS_FAILED)


def stats(batch: BatchId = "latest", data_dir: DataDir = None) -> None:
    """Show what a batch cost: tokens, rates, acceptance, tokens per pass, phases, failures, workers."""
    from cli.summary import show_summary

    ledger = Workspace(data_dir=data_dir).ledger
    found = ledger.batch(ledger.resolve(batch))
    show_summary(found, ledger.stats(found.id), None)


def show(
    request: Annotated[
        str,
        typer.Argument(metavar="REQUEST", help="Batch id, the start of one, or 'latest'; a hyphen; the index from 0."),
    ],
    data_dir: DataDir = None,
) -> None:
    """Show one request: what was asked, what came, how it went."""
    from cli.output import emit_json, piped
    from cli.request_view import print_request, request_row

    row = request_named(Workspace(data_dir=data_dir).ledger, request)
    if row is None:
        raise NotFoundError(f"{request} is no request: give BATCH-INDEX, such as latest-0, with the index from 0")
    if piped():
        emit_json(request_row(row))
    else:
        print_request(row)


def cancel(batch: BatchId, redis: RedisUrl = None, data_dir: DataDir = None) -> None:
    """Cancel what of a batch is not finished; finished answers stay."""
    from api import closing

    workspace = Workspace(data_dir=data_dir, redis=redis)
    batch_id = workspace.ledger.resolve(batch)
    before = workspace.ledger.batch(batch_id).counts.cancelled
    workspace.ledger.begin_cancelling(batch_id)  # also where Redis does not answer
    connection = workspace.reach()
    queue = None if connection is None else workspace.queue(connection)
    closing.cancel(workspace.ledger, queue, batch_id)
    after = workspace.ledger.batch(batch_id)
    typer.echo(f"{counted(after.counts.cancelled - before, 'request')} of {batch_id} cancelled", err=True)
    _emit_batches([after])


def _say(message: str) -> None:
    typer.echo(message, err=True)


def _emit_batches(batches: list[Batch]) -> None:
    from cli.output import emit

    columns = {
        "id": "batch",
        "state": "state",
        "model": "model",
        "done": "finished",
        "failed": "failed",
        "created": "created",
    }
    if any(batch.expires_at is not None for batch in batches):
        columns |= {"expires": "expires", "expired": "expired"}
    emit((_batch_row(batch) for batch in batches), columns)


def _batch_row(batch: Batch) -> dict[str, Any]:
    return {
        **batch.model_dump(mode="json"),
        "done": f"{batch.counts.finished}/{batch.counts.total}",
        "failed": batch.counts.failed,
        "created": moment(batch.created_at),
        "expires": None if batch.expires_at is None else moment(batch.expires_at),
        "expired": batch.counts.expired,
    }


def _say_that_nothing_runs(workspace: Workspace, batch: Batch) -> bool:
    """On a single machine: whether nobody works on what is open here, and the way out."""
    from cli.coordinator import in_a_fleets_redis, is_recorded

    if workspace.redis_url or is_recorded(workspace):
        return False
    address = in_a_fleets_redis(workspace.ledger).get(batch.id)
    if address is None:
        _say(f"nothing is running here; go on with: cidermill resume {batch.id}")
    else:
        _say(f"{batch.id} is in the Redis at {address}, of which nothing is known here: set CIDERMILL_REDIS_URL_FILE")
    return True


def _say_what_is_missing(workspace: Workspace, batch: Batch, live: Sequence[WorkerInfo]) -> None:
    """For an open batch of a fleet: a worker that takes its requests, and a recorder for their results."""
    from cli.coordinator import is_recorded
    from cli.fleet_view import no_server

    if why := no_server(batch.model, live):
        _say(printable(why))
    if not is_recorded(workspace):
        _say("nothing takes results home into this ledger; start on this machine: cidermill record")


def _say_who_is_missing(workspace: Workspace) -> None:
    """Which models requests wait for that no worker takes. Batches can be listed without Redis."""
    from api.queue.presence import live_workers
    from cli.fleet_view import unserved

    try:
        connection = workspace.reach()
    except QueueError as error:
        _say(printable(f"what workers do is not known: {error}"))
        return
    if connection is not None:
        for sentence in unserved(workspace.queue(connection).demand(), live_workers(connection)):
            _say(printable(sentence))


def _emit_fleet(depth: Mapping[Priority, int], live: Sequence[WorkerInfo], model: str) -> None:
    from cli.output import emit

    emit(
        [{"model": model, **dict(depth.items())}],
        {"model": "waiting for", "high": "high", "normal": "normal", "low": "low"},
    )
    serving = [worker.model_dump(mode="json") for worker in live if worker.model == model]
    columns = {
        "name": "worker",
        "state": "state",
        "chip": "chip",
        "drafter": "drafter",
        "verification": "verification",
        "request_id": "request",
        "tokens": "tokens",
        "completed": "completed",
    }
    emit(serving, columns)
