"""How a run is carried out: things that Metal leaves open, and a correct kernel does not notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from kernels.host.report import Report

Order = Literal["forward", "reverse", "seeded"]


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; the defaults check everything and raise on any finding."""

    order: Order = "forward"
    """In which threads go on after they waited for each other, and threadgroups run."""
    order_seed: int = 1
    layout_seed: int = 0
    """0 spreads matrix and tensor elements over lanes as public kernels assume; any other seed at random."""
    byte_offsets: Mapping[str, int] = field(default_factory=dict)
    """By input name: shifts the buffer off its 4096-byte alignment, as MLX does with a slice."""
    poison_outputs: bool = True
    """Outputs without an init_value begin as 0xff bytes (NaN), else as zeros."""
    contract: bool = False
    """Fuses multiplications with the additions that take them, where Metal's compiler may: within statements, and in
    math modes relaxed and fast everywhere (Metal Shading Language Specification, 1.6.3)."""
    flush_denormals: bool = False
    """Takes denormal floats for zeros in arithmetic, as Metal may in every math mode (8.1 of the same)."""
    check_finite: bool = True
    """Reports an infinity or a NaN that a `fast::` function, or in math mode fast a comparison, meets or gives."""
    metered: bool = True
    """False runs several times faster and checks neither memory nor arithmetic, finite or not."""
    static_checks: bool = True
    """The strict pass and the lint, once for each text."""
    raise_on_findings: bool = True
    cpu_seconds: float = 60.0
    """After which a run counts as endless; of the processor, so that a busy machine ends no run."""


_ambient: ContextVar[RunOptions | None] = ContextVar("options", default=None)
_record: ContextVar[list[Report] | None] = ContextVar("record", default=None)


@contextmanager
def running(options: RunOptions) -> Iterator[list[Report]]:
    """Kernels called inside run with these options; yields the list that collects their reports, of failed runs too."""
    reports: list[Report] = []
    tokens = _ambient.set(options), _record.set(reports)
    try:
        yield reports
    finally:
        _ambient.reset(tokens[0])
        _record.reset(tokens[1])


def current_options() -> RunOptions:
    return _ambient.get() or RunOptions()


def record(report: Report) -> None:
    reports = _record.get()
    if reports is not None:
        reports.append(report)
