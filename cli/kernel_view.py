"""The kernels of this machine, for `cidermill doctor --kernels`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from api.errors import ModelError
from cli.output import emit, emit_json, piped

if TYPE_CHECKING:
    from worker.kernel_check import KernelCheck, VariantCheck

_COLUMNS = {
    "kernel": "kernel",
    "configuration": "configuration",
    "variant": "variant",
    "state": "state",
    "operation": "operation",
    "own": "ms",
    "stock": "stock ms",
    "reason": "why",
}


def show_kernels(data_dir: Path) -> bool:
    """Whether all variants that this machine ought to run do: a JSON line for each configuration as soon as it is
    checked, or a table at the end. data_dir: keeps what came of it, for workers. Raises ModelError without MLX,
    StorageError for what cannot be forgotten there.
    """
    if find_spec("mlx") is None:
        raise ModelError("MLX is not installed here, so there are no kernels to check; add the [worker] extra")
    from worker.engine.kernel_set import has_kernels, verdicts_folder
    from worker.kernel_check import check_kernels, known_cases

    if not has_kernels():
        typer.echo("MLX has neither Metal nor CUDA here: no kernel runs, its own operations are used", err=True)
    cases, checks = known_cases(), []
    folder = verdicts_folder(data_dir) if has_kernels() else None  # another machine may share what is there
    for number, check in enumerate(check_kernels(cases, folder), 1):
        checks.append(check)
        if piped():
            emit_json(dataclasses.asdict(check))
        elif has_kernels():
            typer.echo(f"{number}/{len(cases)} {check.kernel}, {check.configuration}: {check.used}", err=True)
    if has_kernels() and not piped():
        emit([row for check in checks for row in rows(check)], _COLUMNS)
    return all(variant.state != "failed" for check in checks for variant in check.variants)


def rows(check: KernelCheck) -> Iterator[dict[str, Any]]:
    """Those of a configuration: one for each operation of a variant that was tried, and one where none is used."""
    cells = {"kernel": check.kernel, "configuration": check.configuration}
    names = [variant.name for variant in check.variants]
    before = check.variants[: names.index(check.used)] if check.used in names else check.variants
    why = _reasons([variant for variant in before if variant.state == "absent"])
    if check.used not in names:
        yield {**cells, "variant": check.used, "state": "used", "reason": why}
    for variant in check.variants:
        if variant.state == "absent":
            continue
        used = variant.name == check.used
        state, reason = ("used", why) if used else (variant.state, variant.told)
        named = {**cells, "variant": variant.name, "state": state, "reason": reason}
        if not variant.timings:
            yield named
        for timing in variant.timings:
            yield {
                **named,
                "operation": timing.operation,
                "own": f"{timing.milliseconds:.3f}",
                "stock": f"{timing.stock_milliseconds:.3f}",
            }


def _reasons(variants: list[VariantCheck]) -> str:
    """Each reason once, after the variants that it keeps from running."""
    reasons: dict[str | None, list[str]] = {}
    for variant in variants:
        reasons.setdefault(variant.told, []).append(variant.name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
