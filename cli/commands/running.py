"""`run` and `resume`: from a file of prompts to a file of answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.choices import MAX_CHOICES, Format, Priority
from api.errors import ExitCode, StorageError
from cli.expiry import Expires
from cli.interrupt import Interrupted
from cli.options import BatchId, DataDir, Drafter, Kernels, Model, RedisUrl, Workspace
from cli.order import dataset_of, error_file, error_writer, model_of, output_file
from cli.output import counted, moment

if TYPE_CHECKING:
    from api.schemas import Batch
    from api.submission import Order
    from cli.progress import Display

Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT", help="Prompts: .jsonl (OpenAI Batch or short lines), .txt, .csv, .parquet; - is stdin."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Answers, in place of what the file has; - is standard output.  "
        "[default: INPUT's name with .out.jsonl, in this folder]",
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="Format of the answers.")]
TemplateOption = Annotated[
    str | None, typer.Option("--template", help="Prompt of a CSV or Parquet row, such as 'Summarise: {text}'.")
]
PriorityOption = Annotated[Priority, typer.Option("--priority", help="Whether this batch goes before or after others.")]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Run the good lines; the bad ones go to a file .errors.jsonl.")
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Completion tokens where a line names none.")
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0, help="Sampling temperature where a line names none; 0 is greedy."),
]
Choices = Annotated[
    int | None, typer.Option("--n", min=1, max=MAX_CHOICES, help="Answers per prompt where a line names no number.")
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        "--acceptance",
        metavar="RULE",
        help="Where a line names none: lossless, or ratio:theta=0.3, which changes the distribution of sampled text.",
        show_default=False,
    ),
]

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Sampling values of the configuration file's table [profiles.NAME], where a line names none.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill run examples/short.jsonl -o out.jsonl --max-tokens 64")(run)
    app.command(epilog="Example: cidermill resume latest")(resume)


def run(
    input_path: Input,
    output: Output = None,
    model: Model = None,
    drafter: Drafter = None,
    kernels: Kernels = None,
    output_format: OutputFormat = "openai",
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
    worker: Annotated[
        bool | None, typer.Option("--worker/--no-worker", help="Start a worker here.  [default: yes, without --redis]")
    ] = None,
) -> None:
    """Generate for every prompt of a file and write the answers.

    Without Redis it does all on this machine: a private server, one worker, the recorder. Interrupted, the same command
    goes on where it was.
    """
    from api.submission import Order
    from cli.coordinator import only_one
    from cli.prechecks import check_drafter, check_model, check_output
    from cli.progress import display

    engine = {"model": model, "drafter": drafter, "kernels": kernels, "acceptance": acceptance}
    workspace = Workspace(data_dir=data_dir, redis=redis, **engine)
    local_worker = worker if worker is not None else workspace.redis_url is None
    if not local_worker and workspace.redis_url is None:
        raise typer.BadParameter("without --redis nobody else could answer", param_hint="--no-worker")
    rule = workspace.settings.acceptance
    given = {"max_tokens": max_tokens, "temperature": temperature, "n": n, "acceptance": rule}
    dataset = dataset_of(workspace, input_path, template, profile, given)
    chosen = model_of(dataset, model, workspace.settings.model)
    check_model(chosen, runs_here=local_worker)
    if local_worker:
        check_drafter(workspace.settings.drafter)
    output = output_file(output, input_path, output_format)
    check_output(output, input_path)
    if workspace.redis_url:
        workspace.connect().close()
    with only_one(workspace), display(output) as view:
        order = Order(
            dataset=dataset,
            model=chosen,
            priority=priority,
            output_path=output,
            output_format=output_format,
            skip_invalid=skip_invalid,
            expires_seconds=expires,
            on_invalid=error_writer(error_file(output, input_path), view.say),
        )
        batch = _batch_of(workspace, order, view)
        _finish(workspace, batch, view, local_worker=local_worker)
    _deliver(workspace, batch.id, output_format)


def resume(batch: BatchId = "latest", redis: RedisUrl = None, data_dir: DataDir = None) -> None:
    """Go on with an unfinished batch; finished requests are not generated again.

    On a fleet it puts what Redis does not know back on the queue; on one machine it also runs the batch to its end.
    """
    workspace = Workspace(data_dir=data_dir, redis=redis)
    found = workspace.ledger.batch(workspace.ledger.resolve(batch))
    if workspace.redis_url:
        from api.submission import requeue_missing

        count = requeue_missing(workspace.ledger, workspace.queue(workspace.connect()), found.id)
        typer.echo(f"{counted(count, 'request')} of {found.id} put back on the queue", err=True)
        return
    from cli.coordinator import only_one
    from cli.prechecks import check_output
    from cli.progress import display

    output, output_format = workspace.ledger.output_of(found.id)
    check_output(output)
    with only_one(workspace), display(output) as view:
        _finish(workspace, found, view, local_worker=True)
    _deliver(workspace, found.id, output_format)


def _batch_of(workspace: Workspace, order: Order, view: Display) -> Batch:
    """The unfinished batch of the same command, else a new one in the ledger. Nothing is on the queue yet."""
    from api.submission import register_batch

    before = workspace.ledger.find_unfinished(order.fingerprint())
    if before is None:
        return register_batch(workspace.ledger, order)
    deadline = "" if before.expires_at is None else f", expires {moment(before.expires_at)}"
    finished = f"{before.counts.finished} of {counted(before.counts.total, 'request')} finished"
    view.say(f"going on with {before.id}: {finished}{deadline}")
    return before


def _finish(workspace: Workspace, batch: Batch, view: Display, *, local_worker: bool) -> None:
    """Queue what is open and wait for the rest; interrupted, say how to go on."""
    from api.submission import requeue_missing
    from cli.coordinator import Coordinator

    if batch.counts.finished == batch.counts.total:
        return
    left_over = [] if workspace.redis_url else _left_over(workspace, batch)
    for other in left_over:
        waiting = counted(other.counts.total - other.counts.finished, "request")
        view.say(
            f"{waiting} of {other.id}, left over from before, may come first; without: cidermill cancel {other.id}"
        )
    with Coordinator(workspace, batch.model, local_worker=local_worker).running() as coordinator:
        try:
            requeue_missing(workspace.ledger, coordinator.queue, batch.id)
            view.start(batch.counts)
            if not local_worker:
                coordinator.say_who_is_missing(view.say)
            coordinator.wait(
                batch.id,
                on_finished=view.finished,
                on_news=view.say,
                on_tick=lambda: view.tick(coordinator.busy_worker(batch.id)),
            )
        except Interrupted:
            # Said before the worker has handed back its request, which takes a while.
            view.say(f"stopping; go on with the same command or: cidermill resume {batch.id}")
            raise

    for other in left_over:
        if (now := workspace.ledger.batch(other.id)).counts.finished == now.counts.total:
            view.say(f"{other.id}, left over from before, is done too; its answers: cidermill resume {other.id}")


def _left_over(workspace: Workspace, batch: Batch) -> list[Batch]:
    """Other batches that a worker for this one's model works on as well: an interrupted command put them in."""
    from api.states import OPEN_BATCH_STATES
    from cli.coordinator import in_a_fleets_redis

    others = in_a_fleets_redis(workspace.ledger).keys() | {batch.id}
    listed = workspace.ledger.batches(limit=1000)
    return [
        one for one in listed if one.model == batch.model and one.state in OPEN_BATCH_STATES and one.id not in others
    ]


def _deliver(workspace: Workspace, batch_id: str, output_format: Format) -> None:
    """Write the answers, then the summary; failed requests end in their own exit code."""
    from api.dataset.writer import write_results
    from cli.summary import show_summary

    ledger = workspace.ledger
    batch = ledger.batch(batch_id)
    path, _ = ledger.output_of(batch_id)
    try:
        write_results(ledger.results(batch_id), path, output_format)
    except StorageError as error:
        raise StorageError(f"{error}; the ledger has the answers: cidermill results {batch_id} -o FILE") from error
    ledger.mark_delivered(batch_id)
    show_summary(batch, ledger.stats(batch_id), path, sys.stderr if path is None else None)
    if batch.counts.finished > batch.counts.completed:
        raise typer.Exit(ExitCode.REQUESTS_FAILED)
