"""The CUDA text of the quantised product on the host, without a GPU: results, accesses, barriers and copies."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from qmm_problems import Problem, assert_one_rounding

from kernels.host import Defect, Report, RunOptions, running
from kernels.host.cuda import cuda_kernel
from kernels.qmm.cuda import SHARED_BYTES, TILINGS, Plan, plan, plans, product

# Ragged rows and columns, a K that is no whole number of spans, every group size and both numbers of bits.
PLANNED = [
    Problem(1, 40, 640, 64, 4, mx.float16),
    Problem(11, 72, 512, 64, 4, mx.bfloat16),
    Problem(29, 40, 288, 32, 4, mx.bfloat16),
    Problem(9, 40, 384, 128, 4, mx.float16),
    Problem(16, 40, 320, 32, 8, mx.bfloat16),
    Problem(32, 24, 192, 64, 8, mx.float16),
    Problem(5, 24, 384, 128, 8, mx.bfloat16),
]


def divided(problem: Problem, split: int, phases: int, teams: int, tiling: int = 0) -> Plan:
    """A plan of few blocks that the planner would keep for other sizes. teams: of `split` blocks."""
    rows = next(most for most in TILINGS if problem.rows <= most)
    shape = problem.rows, problem.depth, problem.columns, problem.group_size, problem.bits
    wanted = split, phases, TILINGS[rows][tiling]
    how = next(one for _, one in plans(*shape) if (one.split, one.phases, one.tiling) == wanted)
    return replace(how, teams=teams, shared_bytes=SHARED_BYTES)


def multiplied(
    problem: Problem, options: RunOptions, how: Plan | None = None, factory: Callable[..., Any] = cuda_kernel
) -> tuple[mx.array, Report]:
    operands = problem.operands()
    with running(options) as reports:
        result = product(factory, plan if how is None else lambda *_: how)(*operands)
    return result, reports[0]


@pytest.mark.parametrize("problem", PLANNED, ids=str)
def test_a_product_is_off_by_one_rounding_and_reads_each_weight_once(problem: Problem) -> None:
    result, report = multiplied(problem, RunOptions())
    assert_one_rounding(result, *problem.operands(), of_weights=mx.float32)
    assert report.traffic["w"].most_reads == 1
    assert report.traffic["w"].unique_bytes_read == report.traffic["w"].bytes


@pytest.mark.parametrize(("rows", "tiling"), [(8, 0), (16, 0), (16, 1), (32, 0)])
@pytest.mark.parametrize("phases", [1, 2])
def test_a_block_goes_over_many_tiles_in_rounds_and_phases(rows: int, tiling: int, phases: int) -> None:
    problem = Problem(rows - 3, 200, 1024, 64, 4, mx.bfloat16)
    how = divided(problem, 1, phases, teams=2, tiling=tiling)
    result, report = multiplied(problem, RunOptions(), how)
    assert_one_rounding(result, *problem.operands(), of_weights=mx.float32)
    assert report.traffic["w"].most_reads == 1
    assert report.threadgroups == 2


# The meter takes blocks that meet in memory for a defect, and the array in which they count for an input.
@pytest.mark.parametrize(("split", "phases"), [(2, 1), (3, 2)])
def test_the_last_block_of_a_team_adds_in_one_order_whoever_it_is(split: int, phases: int) -> None:
    problem = Problem(13, 72, 2048, 64, 4, mx.bfloat16)
    how = divided(problem, split, phases, teams=2)
    results = []
    for seed in range(3):
        result, report = multiplied(problem, RunOptions(metered=False, order="seeded", order_seed=seed), how)
        assert report.threadgroups == 2 * split
        results.append(np.array(result.view(mx.uint16)))
    assert_one_rounding(result, *problem.operands(), of_weights=mx.float32)
    assert all(np.array_equal(results[0], other) for other in results)


def changed(old: str, new: str, number: int) -> Callable[..., Any]:
    """A factory that puts `new` in place of the number-th `old` of the text."""

    def factory(**options: Any) -> Any:
        at = [match.start() for match in re.finditer(re.escape(old), options["source"])][number]
        source = options["source"][:at] + new + options["source"][at + len(old) :]
        return cuda_kernel(**{**options, "source": source})

    return factory


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ("__syncwarp();", "", 2),  # between copies that are awaited and those that are read
        ("await_copies<STAGES - 2>", "await_copies<STAGES - 1>", 0),
        ("__syncthreads();", "__syncwarp();", 0),  # of a round
    ],
    ids=["copies", "awaited", "round"],
)
def test_what_orders_warps_and_lanes_is_missed(old: str, new: str, number: int) -> None:
    problem = Problem(5, 200, 1024, 64, 4, mx.bfloat16)
    how = divided(problem, 1, 2, teams=1)
    assert multiplied(problem, RunOptions(), how)[1].defects == set()
    _, report = multiplied(problem, RunOptions(raise_on_findings=False), how, changed(old, new, number))
    assert Defect.RACE in report.defects


def test_counters_are_left_as_they_were_found() -> None:
    problem = Problem(13, 72, 2048, 64, 4, mx.bfloat16)
    how = divided(problem, 3, 2, teams=2)
    left: list[mx.array] = []

    def telling(**options: Any) -> Callable[..., list[mx.array]]:
        """The kernel with another output, to which each block copies the counter of its team at its end."""
        tail = "__syncthreads(); if (threadIdx.x == 0) { left[team] = arrivals[team]; }"
        names = [*options["output_names"], "left"]
        kernel = cuda_kernel(**{**options, "source": options["source"] + tail, "output_names": names})

        def call(**arguments: Any) -> list[mx.array]:
            shapes, dtypes = [*arguments["output_shapes"], (how.teams,)], [*arguments["output_dtypes"], mx.uint32]
            *out, counters = kernel(**{**arguments, "output_shapes": shapes, "output_dtypes": dtypes})
            left.append(counters)
            return out

        return call

    result, report = multiplied(problem, RunOptions(metered=False), how, telling)
    assert_one_rounding(result, *problem.operands(), of_weights=mx.float32)
    assert report.threadgroups == how.split * how.teams
    assert left[0].tolist() == [0] * how.teams
