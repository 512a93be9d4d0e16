"""What the kernels do on this machine: which variant runs, why not those before it, and its time beside the stock path.

Of every configuration the first variant that compiles and agrees with its reference is found (see `kernels.probing`);
where that is not the reference itself, both are timed on a problem of the size that a verification pass has. A time is
that of one call by itself, its launch included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import mlx.core as mx

from kernels import gated_delta_tree, qmm, sample, tree_attention
from kernels.probing import Choice

ROWS = 16
RUNS = 5
REFERENCE = "reference"


@dataclass(frozen=True)
class KernelCheck:
    """variant: what runs. refused: why each variant before it does not, by name. milliseconds, stock_milliseconds: of
    the variant and of the reference, None where the reference is what runs.
    """

    kernel: str
    configuration: str
    variant: str
    refused: dict[str, str] = field(default_factory=dict)
    milliseconds: float | None = None
    stock_milliseconds: float | None = None


@dataclass(frozen=True)
class Problem:
    """chosen: probes. arguments: those of a run, made only where it is timed. reference: the stock path."""

    kernel: str
    configuration: str
    chosen: Callable[[], Choice[Any]]
    arguments: Callable[[], tuple[Any, ...]]
    reference: Callable[..., Any]


def check_kernels(problems: Iterable[Problem] | None = None) -> Iterator[KernelCheck]:
    """The check of each problem, by default of all configurations that the kernels have, as soon as it is there."""
    for problem in known_problems() if problems is None else problems:
        choice = problem.chosen()
        variant, refused = choice.name, dict(choice.refused)
        own = stock = None
        if variant != REFERENCE:
            arguments = problem.arguments()
            try:
                own, stock = (_milliseconds(partial(run, *arguments)) for run in (choice.run, problem.reference))
            except (RuntimeError, ValueError) as error:
                refused[variant] = f"passed its check, and then failed at a larger size: {' '.join(str(error).split())}"
                variant = REFERENCE
        yield KernelCheck(problem.kernel, problem.configuration, variant, refused, own, stock)


def known_problems() -> Iterator[Problem]:
    for bits in qmm.BITS:
        for group_size in qmm.GROUP_SIZES:
            yield _product(bits, group_size)
    for head_size in tree_attention.HEAD_SIZES:
        yield _attention(head_size)
    for by_channel in (False, True):
        yield _recurrence(by_channel)
    for dtype in sample.DTYPES:
        yield _draw(dtype)


def _product(bits: int, group_size: int) -> Problem:
    def arguments() -> tuple[Any, ...]:
        weight = mx.random.normal((4096, 4096), key=mx.random.key(0)).astype(mx.bfloat16)
        x = mx.random.normal((ROWS, 4096), key=mx.random.key(1)).astype(mx.bfloat16)
        return (x, *mx.quantize(weight, group_size=group_size, bits=bits), group_size, bits)

    chosen = partial(qmm.chosen, mx.bfloat16, group_size=group_size, bits=bits)
    return Problem("qmm", f"{bits} bit, group {group_size}, bfloat16", chosen, arguments, qmm.reference)


def _attention(head_size: int) -> Problem:
    def arguments() -> tuple[Any, ...]:
        queries, keys, values = (
            mx.random.normal((1, heads, rows, head_size), key=mx.random.key(heads + rows)).astype(mx.bfloat16)
            for heads, rows in ((16, ROWS), (4, 2048), (4, 2048))
        )
        chain = mx.array([(1 << node + 1) - 1 for node in range(ROWS)], dtype=mx.uint32)
        return queries, keys, values, chain

    def attend(run: Callable[..., mx.array]) -> Callable[..., mx.array]:
        return partial(run, scale=head_size**-0.5, window=None, keep=0, sinks=None)

    def chosen() -> Choice[Any]:
        choice = tree_attention.chosen(mx.bfloat16, head_size)
        return Choice(choice.name, attend(choice.run), choice.refused)

    configuration = f"heads of {head_size}, bfloat16"
    return Problem("tree_attention", configuration, chosen, arguments, attend(tree_attention.reference))


def _recurrence(by_channel: bool) -> Problem:
    key_heads, heads, width = 16, 32, 128

    def arguments() -> tuple[Any, ...]:
        shapes = [
            (1, ROWS, key_heads, width),
            (1, ROWS, key_heads, width),
            (1, ROWS, heads, width),
            (1, ROWS, heads, *([width] if by_channel else [])),
            (1, ROWS, heads),
        ]
        q, k, v, g, beta = (
            mx.sigmoid(mx.random.normal(shape, key=mx.random.key(number))).astype(mx.bfloat16)
            for number, shape in enumerate(shapes)
        )
        state = mx.random.normal((1, heads, width, width), key=mx.random.key(9))
        return q, k, v, g, beta, state, gated_delta_tree.Tree(range(-1, ROWS - 1))

    def chosen() -> Choice[Any]:
        q, k, v, g, beta, *_ = arguments()
        choice = gated_delta_tree.chosen(gated_delta_tree.configuration(k, v, g, beta, q))
        return Choice(choice.name, choice.run.outputs, choice.refused)

    gate = "a gate per channel" if by_channel else "a gate per head"
    reference = gated_delta_tree.reference().outputs
    return Problem("gated_delta_tree", f"{gate}, bfloat16", chosen, arguments, reference)


def _draw(dtype: mx.Dtype) -> Problem:
    def arguments() -> tuple[Any, ...]:
        logits = (mx.random.normal((ROWS, 151_936), key=mx.random.key(0)) * 3).astype(dtype)
        draws = [sample.Draw(temperature=0.7, top_p=0.9, seed=1, position=row) for row in range(ROWS)]
        return logits, draws, 0

    def arrays_of(run: Callable[..., sample.Drawn]) -> Callable[..., list[mx.array]]:
        return lambda *given: list(vars(run(*given)).values())

    def chosen() -> Choice[Any]:
        choice = sample.chosen(dtype)
        return Choice(choice.name, arrays_of(choice.run), choice.refused)

    name = str(dtype).removeprefix("mlx.core.")
    return Problem("sample", name, chosen, arguments, arrays_of(sample.reference_sample))


def _milliseconds(run: Callable[[], Any]) -> float:
    """Median of RUNS runs, after one that compiles."""
    times = []
    for _ in range(1 + RUNS):
        begun = time.perf_counter()
        mx.eval(run())
        times.append((time.perf_counter() - begun) * 1000)
    return median(times[1:])
