"""`outputs.metal` under emulation, against a float64 recurrence along the path of each node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gated_delta_tree_cases import Case, as_float64, expected_outputs, random_parents

from kernels.gated_delta_tree import Tree
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.host import Defect, RunOptions, metal_kernel, running

# Half a step of the type, as a share of the value, and an absolute part for float32 sums over the widest key.
ROUNDING = {mx.float32: 0.0, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
OF_SUMS = 1e-5

CHAIN = tuple(range(-1, 31))
SIBLINGS = (-1, *[0] * 8)
SEVERAL_ROOTS = (-1, -1, 0, 1, 1, -1, 2, 3, 7, 8, 6, 5, 11, 9, 13, 14, 4)

CASES = {
    "lone node, odd heads": Case((-1,), 64, 32, 3, 3),
    "two groups of columns, bfloat16": Case(random_parents(12, 1), 128, 64, 1, 2, rows=mx.bfloat16),
    "chain of 32": Case(CHAIN, 64, 96, 1, 2),
    "32 nodes, a gate per channel": Case(random_parents(32, 2), 128, 32, 1, 3, by_channel=True),
    "one beyond a chunk, float16": Case(SIBLINGS, 256, 32, 1, 1, by_channel=True, rows=mx.float16),
    "several roots": Case(SEVERAL_ROOTS, 256, 64),
    "as a model has it": Case(random_parents(16, 3), 128, 64, 2, 4, rows=mx.bfloat16, raw=True),
    "as a model has it, in float32": Case(random_parents(9, 4), 64, 32, 1, 2, raw=True, apart=True),
    "unnormed, a gate per channel": Case(random_parents(17, 5), 64, 32, by_channel=True, raw=True),
    "chain of 32, a gate per channel": Case(CHAIN, 64, 32, by_channel=True),
}


def run(case: Case, options: RunOptions, factory: Callable[..., Any] = metal_kernel) -> tuple[mx.array, Any]:
    with running(options) as reports:
        y = metal_recurrence(factory).outputs(*case.call(), Tree(case.parents))
    return y, reports[0]


def assert_right(case: Case, y: mx.array) -> None:
    expected = expected_outputs(case.arguments(), case.parents, case.raw)
    np.testing.assert_allclose(as_float64(y), expected, rtol=ROUNDING[case.rows], atol=OF_SUMS)


@pytest.mark.parametrize("name", CASES)
def test_every_node_sees_its_own_path_and_the_state_is_read_once(name: str) -> None:
    case = CASES[name]
    y, report = run(case, RunOptions())
    assert (y.shape, y.dtype) == ((1, len(case.parents), case.heads, case.value_width), case.rows)
    assert_right(case, y)
    state = report.traffic["state"]
    assert (state.most_reads, state.bytes_read) == (1, 4 * case.heads * case.value_width * case.key_width)
    assert report.traffic["y"].most_writes == 1
    assert report.threadgroup_bytes == 2 * 8 * 4 * (case.key_width + 32) + 3 * 32 * 4


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(order="reverse", layout_seed=3),
        RunOptions(order="seeded", order_seed=2),
        # Rows may begin anywhere, as slices do; the state at a multiple of 16 bytes.
        RunOptions(
            order="seeded", order_seed=3, byte_offsets={"q": 2, "k": 6, "v": 10, "g": 4, "beta": 2, "state": 16}
        ),
    ],
    ids=["reverse", "seeded", "shifted"],
)
def test_order_and_alignment_change_nothing(options: RunOptions) -> None:
    case = CASES["two groups of columns, bfloat16"]
    first, _ = run(case, RunOptions())
    again, _ = run(case, options)
    assert mx.array_equal(first, again)


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
INSTEAD = {
    "nothing": "",
    "a simdgroup's barrier": "simdgroup_barrier(mem_flags::mem_threadgroup);",
    "no memory ordered": "threadgroup_barrier(mem_flags::mem_none);",
}


def defects_with(barriers: list[str]) -> set[Defect]:
    def changed(*, name: str, source: str, **rest: Any) -> Any:
        if name.startswith("gated_delta_tree_outputs"):
            before, between, behind = source.split(BARRIER)
            source = before + barriers[0] + between + barriers[1] + behind
        return metal_kernel(name=name, source=source, **rest)

    options = RunOptions(raise_on_findings=False, static_checks=False)
    return run(CASES["two groups of columns, bfloat16"], options, changed)[1].defects


@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
@pytest.mark.parametrize("barrier", [0, 1], ids=["before a chunk is filled", "after it is filled"])
def test_no_barrier_can_be_weaker_or_go(barrier: int, instead: str) -> None:
    barriers = [BARRIER, BARRIER]
    barriers[barrier] = instead
    assert Defect.RACE in defects_with(barriers)


def test_with_both_barriers_nothing_is_amiss() -> None:
    assert defects_with([BARRIER, BARRIER]) == set()
