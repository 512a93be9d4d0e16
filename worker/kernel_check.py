"""What the kernels do on this machine: each variant in each configuration is checked, and timed beside the stock path.

All of it happens in a child process, as a kernel may fault the device or never end. What a machine ought to run and
does not is refused from then on, in the folder that keeps such verdicts; what it holds is forgotten first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

import mlx.core as mx

from api.errors import StorageError
from kernels import gated_delta_tree, qmm, sample, tree_attention, tree_convolution, verdicts
from kernels.child import Child, ChildError, InconclusiveError, NoAnswerError
from kernels.gated_delta_tree.problem import KEY_WIDTHS, ROW_TYPES
from kernels.probing import MAKING_FAILED, REFERENCE, Kernel, UnavailableError, checked, keep
from kernels.words import excerpt, in_words, says_too_few_threads
from worker import kernel_problems
from worker.kernel_problems import Operation

SECONDS = 120.0
"""That a variant may take to compile, pass its check and be timed in one configuration."""
TURNS = 5
ENOUGH_SECONDS = 1.0
"""After which an operation is timed no further."""
VALUE_WIDTH = 128
USUAL_KEY_WIDTH = 128


@dataclass(frozen=True)
class Case:
    """operations: a module's function, which makes the problems of a configuration in the child."""

    kernel: Kernel[Any, Any]
    words: str
    configuration: Any
    operations: Callable[[Any], list[Operation[Any]]]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call among many in one evaluation: of the variant, and of the reference."""

    operation: str
    milliseconds: float
    stock_milliseconds: float


@dataclass(frozen=True)
class VariantCheck:
    """state: absent is what this machine cannot run, failed what it ought to run. reason: of either, in all words."""

    name: str
    state: Literal["passed", "failed", "absent"]
    reason: str | None = None
    timings: list[Timing] = field(default_factory=list)

    @property
    def told(self) -> str | None:
        """The reason, for a table."""
        return None if self.reason is None else excerpt(self.reason)


@dataclass(frozen=True)
class KernelCheck:
    """used: the first variant that passed, else REFERENCE."""

    kernel: str
    configuration: str
    used: str
    variants: list[VariantCheck]


def known_cases() -> list[Case]:
    """All configurations that the kernels have."""
    return [*_products(), *_attentions(), *_recurrences(), *_convolutions(), *_draws()]


def _products() -> Iterator[Case]:
    for dtype, bits, group_size in product(qmm.DTYPES, qmm.BITS, qmm.GROUP_SIZES):
        words = f"{bits} bit, group {group_size}, {_name(dtype)}"
        configuration = qmm.Configuration(dtype, group_size, bits)
        yield Case(qmm.KERNEL, words, configuration, kernel_problems.products)


def _attentions() -> Iterator[Case]:
    for dtype, size in product(tree_attention.DTYPES, tree_attention.HEAD_SIZES):
        words = f"heads of {size}, {_name(dtype)}"
        configuration = tree_attention.Configuration(dtype, size)
        yield Case(tree_attention.KERNEL, words, configuration, kernel_problems.attentions)


def _recurrences() -> Iterator[Case]:
    """As models ask for them: keys and queries are normed by the kernel, and most gates per head made by it."""
    for dtype, by_channel, width in product(ROW_TYPES, (False, True), KEY_WIDTHS):
        words = f"keys of {width}, a gate per {'channel' if by_channel else 'head'}, {_name(dtype)}"
        yield _recurrence(words, width, by_channel, dtype, None if by_channel else (mx.float32, dtype))
    for dtype in ROW_TYPES:
        words = f"keys of {USUAL_KEY_WIDTH}, a gate per head, {_name(dtype)}"
        if dtype != mx.float32:  # A_log as well, by some conversions
            yield _recurrence(f"{words} throughout", USUAL_KEY_WIDTH, False, dtype, (dtype, dtype))
        yield _recurrence(f"{words}, gates of its own", USUAL_KEY_WIDTH, False, dtype, None)


def _recurrence(
    words: str, width: int, by_channel: bool, dtype: mx.Dtype, parameters: tuple[mx.Dtype, mx.Dtype] | None
) -> Case:
    types = (dtype, dtype, dtype if parameters else mx.float32, dtype, dtype)  # mlx-lm computes gates in float32
    configuration = gated_delta_tree.Configuration(width, VALUE_WIDTH, by_channel, types, parameters, False)
    return Case(gated_delta_tree.KERNEL, words, configuration, kernel_problems.recurrences)


def _convolutions() -> Iterator[Case]:
    for dtype in tree_convolution.DTYPES:
        configuration = tree_convolution.Configuration(dtype, tree_convolution.USUAL_SIZE)
        words = f"kernels of {configuration.size} rows, {_name(dtype)}"
        yield Case(tree_convolution.KERNEL, words, configuration, kernel_problems.convolutions)


def _draws() -> Iterator[Case]:
    for dtype in sample.DTYPES:
        yield Case(sample.KERNEL, _name(dtype), dtype, kernel_problems.draws)


def check_kernels(cases: Iterable[Case], folder: Path | None, seconds: float = SECONDS) -> Iterator[KernelCheck]:
    """The check of each case, as soon as it is there. folder: where verdicts are kept. seconds: for each variant.

    StorageError when the folder has a verdict that cannot be removed.
    """
    if folder is not None:
        _forget(folder)
    hung: dict[tuple[str, str], str] = {}
    with Child(seconds) as child:
        for case in cases:
            checks = [_checked(case, name, folder, child, hung) for name in case.kernel.variants]
            used = next((check.name for check in checks if check.state == "passed"), REFERENCE)
            yield KernelCheck(case.kernel.name, case.words, used, checks)


def _forget(folder: Path) -> None:
    try:
        verdicts.forget(folder)
    except OSError as error:
        path = error.filename or folder
        raise StorageError(
            f"{path}: what an earlier check of kernels found cannot be removed ({error.strerror}), and workers would "
            "go by it: remove it yourself, or make its folder writable"
        ) from error


def _checked(
    case: Case, variant: str, folder: Path | None, child: Child, hung: dict[tuple[str, str], str]
) -> VariantCheck:
    """hung: in which configuration a kernel's variant did; it is not waited for again."""
    kernel, configuration = case.kernel, case.configuration
    try:
        kernel.variants[variant](configuration)
    except UnavailableError as error:
        return VariantCheck(variant, "absent", str(error))
    except MAKING_FAILED as error:
        return VariantCheck(variant, "failed", in_words(error))
    if (kernel.name, variant) in hung:
        return VariantCheck(variant, "failed", f"not tried, after it hung with {hung[kernel.name, variant]}")
    gave_no_answer = False
    try:
        complaint, timings = child.call(tried, kernel.home, variant, configuration, case.operations)
    except InconclusiveError as error:
        return VariantCheck(variant, "failed", str(error))
    except ChildError as error:
        complaint, timings = str(error), []
        gave_no_answer = isinstance(error, NoAnswerError)
        if gave_no_answer:
            hung[kernel.name, variant] = case.words
    keep(kernel, variant, configuration, folder, complaint, gave_no_answer)
    if complaint is None:
        return VariantCheck(variant, "passed", timings=timings)
    return VariantCheck(variant, "absent" if says_too_few_threads(complaint) else "failed", complaint, timings)


def tried(
    home: str, variant: str, configuration: Any, operations: Callable[[Any], list[Operation[Any]]]
) -> tuple[str | None, list[Timing]]:
    """In the child: what is wrong with a variant of the kernel at `home`, and its times as far as nothing was."""
    complaint = checked(home, variant, configuration)
    timings: list[Timing] = []
    if complaint is None:
        kernel: Kernel[Any, Any] = import_module(home).KERNEL
        run = kernel.variants[variant](configuration)
        for operation in operations(configuration):
            found, own = _timed(operation, run)
            complaint = operation.complaint(found, operation.exact())
            if complaint is not None:
                break
            timings.append(Timing(operation.name, own, _timed(operation, kernel.reference)[1]))
    mx.clear_cache()
    return complaint, timings


def _timed(operation: Operation[Any], run: Any) -> tuple[list[mx.array], float]:
    """The results, and the median milliseconds of a call over TURNS evaluations, after one that compiles.

    Of slow ones, such as the draws of a host, there are fewer, but one at least.
    """
    times: list[float] = []
    begun = last = time.perf_counter()
    while len(times) < 1 + TURNS and (len(times) < 2 or last - begun < ENOUGH_SECONDS):
        found = operation.calls(run)
        mx.eval(found)
        times.append(time.perf_counter() - last)
        last += times[-1]
    return found, median(times[1:]) * 1000 / operation.count


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
