"""What a run found and measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Defect(Enum):
    """Kinds of findings."""

    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    WRITE_TO_INPUT = "write_to_input"
    UNINITIALISED_READ = "uninitialised_read"
    UNWRITTEN_OUTPUT = "unwritten_output"
    RACE = "race"
    """Two threads of a threadgroup touch a byte, one writes it, and no barrier orders them."""
    OVERLAP = "overlap"
    """Two threadgroups touch a byte, and one writes it."""
    DIVERGENT_BARRIER = "divergent_barrier"
    DIVERGENT_SIMD = "divergent_simd"
    EARLY_RETURN = "early_return"
    """Some threads wait at a barrier that others will never reach, for they have returned."""
    DEADLOCK = "deadlock"
    THREADGROUP_MEMORY = "threadgroup_memory"
    MISSING_LANE = "missing_lane"
    PARTIAL_SIMDGROUP = "partial_simdgroup"
    BEYOND_CAPACITY = "beyond_capacity"
    TOO_MANY_LAYOUTS = "too_many_layouts"
    UNDEFINED = "undefined"
    """Undefined behaviour of the language: shifts, signed overflow, division by zero, private arrays, conversions."""
    NOT_FINITE = "not_finite"
    """An infinity or a NaN where Metal's fast math assumes that there is none."""
    CRASH = "crash"
    """The kernel ended its process, say through a wild pointer into its own stack."""
    TIMEOUT = "timeout"
    STRICT = "strict"
    """The strict pass rejects the text, mostly for its address spaces."""
    LINT = "lint"


@dataclass(frozen=True)
class Finding:
    """One defect at one place, with the first instance in words."""

    defect: Defect
    message: str
    file: str | None = None
    """`body` or `header`; None where no place is known."""
    line: int | None = None
    count: int = 1

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else "kernel"
        times = f" (and {self.count - 1} times more)" if self.count > 1 else ""
        return f"{place}: {self.defect.value}: {self.message}{times}"


@dataclass(frozen=True)
class Traffic:
    """Bytes that a metered run asked of one buffer, before any cache or coalescing."""

    bytes: int
    bytes_read: int
    bytes_written: int
    atomic_bytes: int
    """Counted among the bytes read or written, too."""
    unique_bytes_read: int
    unique_bytes_written: int
    most_reads: int
    """Reads of the byte that is read most often: 1 means that nothing is read twice."""
    most_writes: int
    bytes_read_once_per_threadgroup: int
    """Sum over the threadgroups of the unique bytes that each reads: what a cache of one threadgroup cannot save."""


@dataclass(frozen=True)
class Report:
    """Of one run."""

    kernel: str
    findings: tuple[Finding, ...]
    completed: bool
    """False if a finding ended the run; outputs and traffic are then partial."""
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """By buffer name; empty for a run that was not metered."""
    threadgroups: int = 0
    barriers: int = 0
    collectives: int = 0
    """Operations of whole simdgroups: reductions, shuffles, matrix products, simdgroup barriers."""
    switches: int = 0
    threadgroup_bytes: int = 0
    seconds: float = 0.0

    @property
    def defects(self) -> set[Defect]:
        return {finding.defect for finding in self.findings}


class KernelDefects(Exception):
    """A run with findings; `report` has them, the message lists them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        listed = "\n".join(f"  {finding}" for finding in report.findings)
        super().__init__(f"kernel {report.kernel} has {len(report.findings)} findings:\n{listed}")
