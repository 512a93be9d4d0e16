"""What speculation costs and gives on this machine: measure the cost of passes, compare with plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.errors import ExitCode, InputError, StorageError
from cli.commands.fleet import load_engine
from cli.options import DataDir, Drafter, Kernels, Model, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from worker.engine.comparison import Measurement, Prompt
    from worker.engine.engine import Engine

MOST_DRAFTED = 31
"""A pass takes 32 nodes at most, and one of them is no guess."""


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill calibrate --model mlx-community/Qwen3-4B-4bit")(calibrate)
    app.command(epilog="Example: cidermill bench --prompts examples/demo.jsonl --sweep 1,2,4,8,16")(bench)


def calibrate(model: Model = None, drafter: Drafter = None, kernels: Kernels = None, data_dir: DataDir = None) -> None:
    """Measure again what a verification pass and a draft cost on this machine, show it, and keep it.

    A worker measures by itself when it first meets a model, and when passes have become faster or slower since. Do it
    by hand to see the curve: a tree of n nodes pays when it yields more tokens than its pass costs passes over one.
    """
    from cli.cost_view import draft_rows, pass_rows, show_costs
    from cli.prechecks import check_model
    from cli.prompts import shipped_prompts

    workspace = Workspace(data_dir=data_dir, model=model, drafter=drafter, kernels=kernels)
    check_model(workspace.settings.model, runs_here=True)
    engine = load_engine(workspace, fresh=True, adopt="always")
    prompts = shipped_prompts(max_tokens=32)
    typer.echo(f"timing drafts on {len(prompts)} prompts", err=True)
    for prompt in prompts:
        engine.generate(prompt.request)
        engine.upkeep()
    engine.close()
    show_costs(pass_rows(engine), draft_rows(engine))


def bench(
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="A file of prompts.  [default: six that come with the program]", show_default=False
        ),
    ] = None,
    model: Model = None,
    drafter: Drafter = None,
    kernels: Kernels = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Completion tokens per prompt.")] = 128,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Measurements of each prompt and configuration.")] = 3,
    threshold: Annotated[
        float, typer.Option("--threshold", help="Gain in percent from which speculation is adopted.")
    ] = 15.0,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep", metavar="N,N,...", help="Compare fixed numbers of drafted tokens a pass, and adopt none."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Compare speculative with plain decoding: rate, acceptance, phases, memory, and whether the texts are the same.

    Both decode the same prompts greedily, by turns and from cold caches; a rate is completion tokens after the first
    pass / (wall - time to first token). The verdict is kept: a worker needs a good one for a drafter that was made for
    another model, and for any with the setting adopt = measured. Kinds of prompts are told apart by what a custom_id
    says before its first hyphen. Exits with 9 when a text differs.
    """
    from cli.comparison_view import begin, show_measurement
    from cli.prechecks import check_model
    from cli.prompts import measured_prompts, shipped_prompts

    numbers = _numbers(sweep)
    workspace = Workspace(data_dir=data_dir, model=model, drafter=drafter, kernels=kernels, prefix_cache_mb=0)
    check_model(workspace.settings.model, runs_here=True)
    chosen = measured_prompts(prompts, max_tokens=max_tokens) if prompts else shipped_prompts(max_tokens=max_tokens)
    engine = load_engine(workspace, adopt="always")
    if engine.drafter.name == "none":
        raise InputError(f"there is nothing to compare: {engine.target.spec} is decoded without a drafter here")
    begin(engine, len(chosen), runs)
    found = []
    for measurement in _measured(_configurations(engine, numbers), chosen, runs):
        show_measurement(measurement, runs)
        found.append(measurement)
    _conclude(engine, found, threshold=None if numbers else 1 + threshold / 100)


def _configurations(engine: Engine, numbers: Sequence[int]) -> dict[str, Engine]:
    """Plain decoding, fixed numbers of drafted tokens, and the budget's own choice."""
    from dataclasses import replace

    from worker.engine.comparison import PLAIN, SPECULATIVE

    def fixed(nodes: int) -> Engine:
        return engine.with_options(replace(engine.options, fixed_nodes=nodes))

    return {PLAIN: fixed(1), **{str(number): fixed(1 + number) for number in numbers}, SPECULATIVE: engine}


def _measured(engines: Mapping[str, Engine], prompts: Sequence[Prompt], runs: int) -> Iterator[Measurement]:
    from worker.engine.comparison import compare

    def say(message: str) -> None:
        typer.echo(message, err=True)

    try:
        yield from compare(engines, prompts, runs, say)
    except ValueError as error:
        raise InputError(str(error)) from error


def _conclude(engine: Engine, found: Sequence[Measurement], threshold: float | None) -> None:
    """Show what was found; keep the verdict, unless a sweep was asked for."""
    from cli.comparison_view import show_summaries, show_verdict
    from worker.engine.adoption import Adoption
    from worker.engine.comparison import SPECULATIVE, summarise

    show_summaries(found, is_sweep=threshold is None)
    overall = summarise(found)
    if threshold is not None:
        speculative = next(one for one in overall if one.configuration == SPECULATIVE)
        verdict = Adoption(speculative.ratio, threshold, speculative.parity["different"] > 0)
        try:
            verdict.store(engine.options.data_dir, engine.target, engine.drafter_key)
        except OSError as error:
            raise StorageError(f"the verdict cannot be kept: {error}") from error
        show_verdict(engine.options.drafter, verdict)
    if any(summary.parity["different"] for summary in overall):
        raise typer.Exit(ExitCode.TEXTS_DIFFER)


def _numbers(sweep: str | None) -> list[int]:
    """The numbers of a sweep. Raises BadParameter."""
    try:
        numbers = sorted({int(word) for word in sweep.split(",")}) if sweep is not None else []
    except ValueError:
        numbers = [0]
    if any(not 1 <= number <= MOST_DRAFTED for number in numbers):
        raise typer.BadParameter(f"{sweep!r} is no list of numbers from 1 to {MOST_DRAFTED}", param_hint="--sweep")
    return numbers
