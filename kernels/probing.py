"""Probing: which variant of a kernel this machine runs, found out once by running each on a small problem.

A variant that is not there, does not compile, or disagrees with the reference is passed over; why is kept for `doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Run = TypeVar("Run")


class UnavailableError(Exception):
    """This machine cannot run the variant. The message says why, in words for the operator."""


@dataclass(frozen=True)
class Variant(Generic[Run]):
    """make: builds the function that runs the kernel. Raises UnavailableError."""

    name: str
    make: Callable[[], Run]


@dataclass(frozen=True)
class Choice(Generic[Run]):
    """name: of the variant that `run` is. refused: why each variant before it is not used, by name."""

    name: str
    run: Run
    refused: dict[str, str] = field(default_factory=dict)


def choose(
    variants: Sequence[Variant[Run]], check: Callable[[Run], str | None], reference: Variant[Run]
) -> Choice[Run]:
    """The first of `variants` that runs here and passes `check`, else `reference`, which needs no check.

    check: runs the small problem; returns what is wrong with the result, None when nothing is.
    """
    refused: dict[str, str] = {}
    for variant in variants:
        try:
            run = variant.make()
            complaint = check(run)
        except UnavailableError as error:
            complaint = str(error)
        except (RuntimeError, ValueError, OSError) as error:  # what MLX makes of a compiler's or a driver's complaint
            complaint = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if complaint is None:
            return Choice(variant.name, run, refused)
        refused[variant.name] = complaint
    return Choice(reference.name, reference.make(), refused)
