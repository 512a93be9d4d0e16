"""The CUDA texts of outputs and commit without a GPU, against the float64 recurrence."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gated_delta_tree_cases import (
    Case,
    as_float64,
    expected_outputs,
    expected_state,
    path_to,
    random_parents,
)
from gated_delta_tree_metal_words import in_metal_words

from kernels.gated_delta_tree import Tree
from kernels.gated_delta_tree.cuda import cuda_recurrence
from kernels.host import Defect, RunOptions, running

# The static checks read Metal, to which the lambdas of these texts are foreign.
OPTIONS = RunOptions(static_checks=False)
CASES = {
    "two groups of columns, bfloat16": Case(random_parents(12, 1), 128, 64, 1, 2, rows=mx.bfloat16),
    "32 nodes, a gate per channel": Case(random_parents(32, 2), 64, 32, 2, 2, by_channel=True),
    "as a model has it": Case(random_parents(16, 3), 128, 64, 2, 4, rows=mx.bfloat16, raw=True),
    "as a model has it, in float32": Case(random_parents(9, 4), 64, 32, 1, 2, raw=True, apart=True),
    "unnormed, a gate per channel": Case(random_parents(17, 5), 64, 32, by_channel=True, raw=True),
    "chain, float16": Case(tuple(range(-1, 16)), 256, 32, by_channel=True, rows=mx.float16),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_operations_follow_the_recurrence(case: Case) -> None:
    arguments = case.arguments()
    rows, state = case.call()
    path = path_to(case.parents, len(case.parents) - 1)
    run = cuda_recurrence(in_metal_words)
    with running(OPTIONS) as reports:
        y = run.outputs(rows, state, Tree(case.parents))
        after = run.commit(rows, state, mx.array(path, dtype=mx.int32))
    rounding = {mx.float32: 0.0, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[case.rows]
    np.testing.assert_allclose(
        as_float64(y), expected_outputs(arguments, case.parents, case.raw), rtol=rounding, atol=1e-5
    )
    np.testing.assert_allclose(as_float64(after), expected_state(arguments, path, case.raw), rtol=0, atol=5e-6)
    assert [report.traffic["state"].most_reads for report in reports] == [1, 1]
    assert reports[0].threadgroup_bytes == 2 * 8 * 4 * (case.key_width + 32) + 3 * 32 * 4


def defects_with(barriers: list[str]) -> set[Defect]:
    def changed(*, name: str, source: str, **rest: Any) -> Any:
        if "outputs" in name:
            before, between, behind = source.split("__syncthreads();")
            source = before + barriers[0] + between + barriers[1] + behind
        return in_metal_words(name=name, source=source, **rest)

    case = CASES["two groups of columns, bfloat16"]
    with running(RunOptions(static_checks=False, raise_on_findings=False)) as reports:
        cuda_recurrence(changed).outputs(*case.call(), Tree(case.parents))
    return reports[0].defects


@pytest.mark.parametrize("instead", ["", "simdgroup_barrier(mem_flags::mem_threadgroup);"], ids=["gone", "of a warp"])
@pytest.mark.parametrize("barrier", [0, 1], ids=["before a chunk is filled", "after it is filled"])
def test_no_barrier_can_be_weaker_or_go(barrier: int, instead: str) -> None:
    barriers = ["__syncthreads();"] * 2
    barriers[barrier] = instead
    assert Defect.RACE in defects_with(barriers)


def test_with_both_barriers_nothing_is_amiss() -> None:
    assert defects_with(["__syncthreads();"] * 2) == set()
