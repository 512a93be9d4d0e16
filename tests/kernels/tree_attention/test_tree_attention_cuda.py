"""The CUDA text of tree attention on the host, without a GPU: results, accesses, barriers and copies."""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from tree_attention_cases import Case, assert_close

from kernels.host import Defect, Report, RunOptions, running
from kernels.host.cuda import cuda_kernel
from kernels.specialised import CUDA_TYPES, specialised
from kernels.tree_attention.cuda import cuda
from kernels.tree_attention.cuda_plan import divided, shared_bytes
from kernels.tree_attention.plan import Extent, Plan

Planner = Callable[[Extent, int], Plan]
PLANNED = [
    Case(1, 1, 1, 1, 64, mx.bfloat16),
    Case(9, 3, 8, 90, 64, mx.float16, window=64, keep=4, sinks=True),
    Case(3, 1, 5, 62, 256, mx.bfloat16, window=30),
]
# Three spans of up to three stages; the second block of rows has two tiles without a row.
DIVIDED = [
    (1, Case(3, 1, 9, 500, 80, mx.bfloat16)),
    (2, Case(6, 2, 9, 300, 64, mx.float16, window=250, keep=5, sinks=True)),
    (4, Case(5, 1, 17, 400, 96, mx.bfloat16, window=395, keep=1)),
    (6, Case(4, 1, 32, 420, 128, mx.bfloat16)),
]


def planner(tiles: int, splits: int) -> Planner:
    return lambda extent, head_size: divided(extent, head_size, tiles, splits)


def attended(case: Case, factory: Callable[..., Any] = cuda_kernel, *plan: Planner) -> list[Report]:
    """Runs the case and compares its result."""
    with running(RunOptions()) as reports:
        assert_close(case.run(cuda(factory, *plan)), case, weights_are_rounded=True)
    return reports


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_every_node_gets_what_float64_gives(case: Case) -> None:
    (report,) = attended(case)
    assert report.traffic["keys"].most_reads == -(-case.heads // case.groups * case.nodes // 16)
    assert report.threadgroup_bytes == shared_bytes(1, case.size)


@pytest.mark.parametrize(("tiles", "case"), DIVIDED, ids=str)
def test_spans_are_merged_and_read_once_for_each_block_of_rows(tiles: int, case: Case) -> None:
    walk, merge = attended(case, cuda_kernel, planner(tiles, 3))
    blocks = -(-case.heads // case.groups * case.nodes // (16 * tiles))
    assert walk.threadgroups == blocks * case.groups * 3
    assert merge.threadgroups == case.heads * case.nodes
    for name in ("keys", "values"):
        assert walk.traffic[name].most_reads == blocks
    assert walk.threadgroup_bytes == shared_bytes(tiles, case.size)


def test_the_text_that_mlx_is_given_has_no_template() -> None:
    attended(PLANNED[1], specialised(cuda_kernel, CUDA_TYPES))


def test_rows_that_cannot_be_copied_eight_at_a_time_are_read_one_by_one() -> None:
    case = Case(2, 1, 5, 60, 64, mx.bfloat16)
    queries, keys, values = case.arrays
    apart = [mx.repeat(array, 2, axis=3)[..., ::2] for array in (queries, keys)]
    odd = mx.concatenate([values[..., :1], values], axis=3)[..., 1:]
    with running(RunOptions()):
        assert_close(case.run(cuda(cuda_kernel), [*apart, odd]), case, weights_are_rounded=True)


SMALL = Case(2, 1, 5, 300, 64, mx.bfloat16)


def changed(old: str, new: str, number: int) -> Callable[..., Any]:
    """A factory that puts `new` in place of the number-th `old` of each text that has it."""

    def factory(**options: Any) -> Any:
        for part in ("source", "header"):
            places = [match.start() for match in re.finditer(re.escape(old), options[part])]
            if number < len(places):
                text, at = options[part], places[number]
                options[part] = text[:at] + new + text[at + len(old) :]
        return cuda_kernel(**options)

    return factory


def defects_with(factory: Callable[..., Any]) -> set[Defect]:
    with running(RunOptions(raise_on_findings=False)) as reports:
        SMALL.run(cuda(factory, planner(1, 2)))
    return {defect for report in reports for defect in report.defects}


@pytest.mark.parametrize("number", range(4))
def test_every_barrier_is_missed_when_it_is_of_a_warp_only(number: int) -> None:
    assert Defect.RACE in defects_with(changed("__syncthreads();", "__syncwarp();", number))


def test_with_all_barriers_nothing_is_amiss() -> None:
    assert defects_with(cuda_kernel) == set()


def test_a_copy_that_is_not_awaited_is_missed() -> None:
    assert Defect.RACE in defects_with(changed("wait_group 2", "wait_group 3", 0))
