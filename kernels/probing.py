"""Probing: which variant of a kernel this machine runs, found out by running each on small problems.

A kernel may fault its device or never end, so a child process runs it (`kernels.child`). A variant that is not there,
does not compile, disagrees with the reference, or takes its process along is passed over; why is kept for `doctor`,
and from one process to the next where there is a folder for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

import mlx.core as mx

from kernels import verdicts
from kernels.child import Child, ChildError, InconclusiveError, NoAnswerError
from kernels.words import in_words, says_too_few_threads

Configuration = TypeVar("Configuration", bound=Hashable)
Run = TypeVar("Run")

SECONDS = 120.0
"""That a probe may take: many times what compiling its kernels takes."""

REFERENCE = "reference"
"""The name of what runs where no variant does: MLX's own operations."""

MAKING_FAILED = (RuntimeError, ValueError, OSError)
"""What MLX raises of a text that it cannot make a kernel of, and Python where the text is not there."""


class UnavailableError(Exception):
    """This machine cannot run the variant. The message says why, in words for the operator."""


@dataclass(frozen=True, eq=False)
class Kernel(Generic[Configuration, Run]):
    """One of the kernels, in all its variants.

    home: the module that has this as KERNEL; a child finds it there, and the texts stand in its folder.
    variants: the best first. Each makes the function that runs a configuration without compiling anything yet; it
    raises UnavailableError. check: runs small problems; returns what is wrong with the results, None when nothing is.
    reference: what runs where no variant does. A configuration's repr tells it from all others.
    """

    name: str
    home: str
    variants: Mapping[str, Callable[[Configuration], Run]]
    check: Callable[[Run, Configuration], str | None]
    reference: Run


@dataclass(frozen=True)
class Choice(Generic[Run]):
    """name: of the variant that `run` is, or REFERENCE. refused: why each variant before it is not used, by name.

    Reasons have any length. failed: those of the variants that this machine ought to run.
    """

    name: str
    run: Run
    refused: dict[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


def chosen(kernel: Kernel[Configuration, Run], configuration: Configuration, folder: Path | None = None) -> Choice[Run]:
    """What this process runs on its default device, found out at the first call. folder: keeps verdicts."""
    return _chosen(kernel, configuration, mx.default_device().type, folder)


@cache
def _chosen(kernel: Kernel[Any, Any], configuration: Any, _device: mx.DeviceType, folder: Path | None) -> Choice[Any]:
    with Child(SECONDS) as child:
        return choose(kernel, configuration, folder, child)


def choose(
    kernel: Kernel[Configuration, Run], configuration: Configuration, folder: Path | None, child: Child
) -> Choice[Run]:
    """The first variant that runs here and passes its check, else the reference, which needs none."""
    refused: dict[str, str] = {}
    failed: tuple[str, ...] = ()
    for name, make in kernel.variants.items():
        complaint: str | None
        try:
            run = make(configuration)
        except UnavailableError as error:
            refused[name] = str(error)
            continue
        except MAKING_FAILED as error:
            complaint = in_words(error)
        else:
            complaint = remembered(kernel, name, configuration, folder, child)
            if complaint is None:
                return Choice(name, run, refused, failed)
        refused[name] = complaint
        if not says_too_few_threads(complaint):
            failed += (name,)
    return Choice(REFERENCE, kernel.reference, refused, failed)


def remembered(
    kernel: Kernel[Configuration, Run], variant: str, configuration: Configuration, folder: Path | None, child: Child
) -> str | None:
    """What is wrong with a variant that this machine can make: the verdict that `folder` has, or a new one."""
    if folder is not None:
        verdict = verdicts.read(folder, _key(kernel, variant, configuration))
        if verdict is not None and verdict.settled:
            return verdict.complaint
    return probe(kernel, variant, configuration, folder, child)


def probe(
    kernel: Kernel[Configuration, Run], variant: str, configuration: Configuration, folder: Path | None, child: Child
) -> str | None:
    """What is wrong with a variant, found out anew; `folder` has it then, whatever it had."""
    hung = False
    try:
        complaint = child.call(checked, kernel.home, variant, configuration)
    except InconclusiveError as error:
        return str(error)
    except ChildError as error:
        complaint, hung = str(error), isinstance(error, NoAnswerError)
    keep(kernel, variant, configuration, folder, complaint, hung)
    return complaint


def keep(
    kernel: Kernel[Configuration, Run],
    variant: str,
    configuration: Configuration,
    folder: Path | None,
    complaint: str | None,
    hung: bool = False,
) -> None:
    """Let `folder`, if there is one, say `complaint` of a variant.

    hung: the variant gave no answer in time. On a busy machine a good one may not: the second time in a row counts.
    """
    if folder is None:
        return
    key = _key(kernel, variant, configuration)
    before = verdicts.read(folder, key) if hung else None
    settled = not hung or (before is not None and not before.settled)
    with suppress(OSError):  # the next process finds it out again
        verdicts.write(folder, key, verdicts.Verdict(complaint, settled))


def checked(home: str, variant: str, configuration: Any) -> str | None:
    """In the child: what is wrong with a variant of the kernel at `home`, None if nothing is."""
    kernel: Kernel[Any, Any] = import_module(home).KERNEL
    try:
        run = kernel.variants[variant](configuration)
    except UnavailableError as error:
        return str(error)
    return kernel.check(run, configuration)


def _key(kernel: Kernel[Any, Any], variant: str, configuration: object) -> verdicts.Key:
    return verdicts.verdict_key(kernel.name, kernel.home, variant, configuration)
