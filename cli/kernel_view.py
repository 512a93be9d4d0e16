"""The kernels of this machine, for `cidermill doctor --kernels`."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from api.errors import ModelError
from cli.output import emit, emit_json, piped

if TYPE_CHECKING:
    from worker.kernel_check import KernelCheck

_COLUMNS = {
    "kernel": "kernel",
    "configuration": "configuration",
    "variant": "runs",
    "own": "ms",
    "stock": "stock ms",
    "refused": "refused",
}


def show_kernels() -> None:
    """A JSON line for each configuration as soon as it is checked, or a table. Raises ModelError without MLX."""
    if find_spec("mlx") is None:
        raise ModelError("MLX is not installed here, so there are no kernels to check; add the [worker] extra")
    from worker.kernel_check import check_kernels

    rows = []
    for check in check_kernels():
        if piped():
            emit_json(dataclasses.asdict(check))
        else:
            typer.echo(f"{check.kernel}, {check.configuration}: {check.variant}", err=True)
            rows.append(cells(check))
    if rows:
        emit(rows, _COLUMNS)


def cells(check: KernelCheck) -> dict[str, Any]:
    """The cells of a configuration's row."""
    return {
        "kernel": check.kernel,
        "configuration": check.configuration,
        "variant": check.variant,
        "own": _time(check.milliseconds),
        "stock": _time(check.stock_milliseconds),
        "refused": _refusals(check.refused),
    }


def _refusals(refused: dict[str, str]) -> str:
    """Each reason once, after the variants that it keeps from running."""
    reasons: dict[str, list[str]] = {}
    for name, why in refused.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.3f}"
