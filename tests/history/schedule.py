"""Which fault strikes when: a list that follows from a seed alone."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

PHASES = ("dequeued", "leased", "started", "generating", "stored", "published", "unbooked")
"""The points at which a worker can be killed, in the order in which one request passes them (see worker_entry.py)."""

WORKER_KINDS = ("stop", "term", "term_twice")
"""What else can happen to a worker."""
SHARED_KINDS = (
    "redis_kill",
    "redis_wipe",
    "redis_pause",
    "redis_hang",
    "ledger_full",
    "outbox_full",
    "recorder_kill",
    "second_recorder",
    "cancel",
    "cancel_cut",
    "expiry",
)
"""What can happen to what all share."""

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """at, seconds: since the start, and how long it lasts. target: the worker's slot. phase: where a kill strikes."""

    at: float
    kind: str
    target: int = 0
    phase: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """Seconds between faults of one sort: of a worker, of what all share. Both are spread by half to either side."""

    worker: float
    shared: float


def plan(seed: int, *, seconds: float, workers: int, lease: float, pace: Pace) -> list[Fault]:
    """The faults of a run. Every sort comes in turn, in an order that the seed shuffles, so that none is left out."""
    chance = random.Random(seed)
    faults = [*_on_workers(chance, seconds, workers, lease, pace.worker), *_shared(chance, seconds, lease, pace.shared)]
    return sorted(faults, key=lambda fault: fault.at)


def _on_workers(chance: random.Random, seconds: float, workers: int, lease: float, gap: float) -> Iterator[Fault]:
    kinds = [*(("kill", phase) for phase in PHASES), *((kind, "") for kind in WORKER_KINDS)]
    for at, (kind, phase) in zip(_times(chance, seconds, gap), _rounds(chance, kinds), strict=False):
        yield Fault(at, kind, chance.randrange(workers), phase, 1.5 * lease if kind == "stop" else 0.0)


def _shared(chance: random.Random, seconds: float, lease: float, gap: float) -> Iterator[Fault]:
    lasting = {
        "redis_kill": 0.5,
        "redis_wipe": 0.5,
        "redis_pause": 1.5 * lease,
        "redis_hang": 1.5 * lease,
        "ledger_full": 2.0,
        "outbox_full": 2.0,
        "second_recorder": max(4.0, gap),
        "expiry": 0.5,
    }
    for at, kind in zip(_times(chance, seconds, gap), _rounds(chance, SHARED_KINDS), strict=False):
        yield Fault(at, kind, seconds=lasting.get(kind, 0.0))


def _times(chance: random.Random, seconds: float, gap: float) -> Iterator[float]:
    at = gap
    while at < seconds:
        yield at
        at += gap * chance.uniform(0.5, 1.5)


def _rounds(chance: random.Random, kinds: Sequence[T]) -> Iterator[T]:
    while True:
        yield from chance.sample(kinds, len(kinds))
