"""The division of a problem: Metal's by hand, CUDA's by what a block holds and what the probe reaches."""

from typing import Any

import pytest

from kernels.tree_attention import HEAD_SIZES, cuda_plan, metal_plan
from kernels.tree_attention.choice import probed
from kernels.tree_attention.plan import Extent, Plan, extent

MODELS = {(24, 4, 256), (32, 8, 128), (9, 3, 64), (32, 32, 80), (16, 2, 96)}
CONTEXTS = (1, 50, 64, 65, 300, 1000, 2100, 9000, 33_000, 140_000)


def divide(
    nodes: int = 8,
    heads: int = 8,
    groups: int = 2,
    columns: int = 1008,
    size: int = 128,
    window: int | None = None,
    keep: int = 0,
    wanted: int = 128,
) -> Plan:
    return metal_plan.plan(extent(nodes, heads, groups, columns, window, keep), size, wanted)


@pytest.mark.parametrize(
    ("heads", "nodes", "size", "per_simdgroup", "blocks"),
    [
        (1, 1, 128, 1, 1),
        (1, 8, 128, 1, 1),
        (1, 9, 128, 2, 1),
        (2, 17, 64, 8, 1),  # 34 rows: 4 a simdgroup would be 32
        (2, 32, 128, 8, 1),
        (3, 32, 128, 8, 2),
        (1, 17, 256, 4, 1),
        (8, 32, 256, 4, 8),
    ],
)
def test_rows_of_one_key_head(heads: int, nodes: int, size: int, per_simdgroup: int, blocks: int) -> None:
    division = divide(nodes=nodes, heads=heads, groups=1, size=size)
    assert division.walk.template == (("ROWS", per_simdgroup),)
    assert division.walk.grid[0] == blocks * 256
    assert division.rows == heads * nodes


@pytest.mark.parametrize(
    ("columns", "wanted", "span", "splits"),
    [
        (100, 128, 128, 1),
        (1008, 128, 128, 8),  # one span for each 128 columns
        (160, 128, 96, 2),  # as even as tiles allow
        (40_000, 128, 640, 63),  # 64 threadgroups for each of two key heads: 625 columns, rounded up to tiles
        (1000, 2, 1024, 1),
    ],
)
def test_spans_cover_the_columns(columns: int, wanted: int, span: int, splits: int) -> None:
    division = divide(columns=columns, wanted=wanted)
    assert (division.span, division.splits) == (span, splits)


def test_a_window_leaves_columns_out() -> None:
    # Committed 1000. The root at 1000 sees positions above 1000 - 96, the first at 905: 4 kept, 901 left out.
    of = divide(window=100, keep=4).extent
    assert (of.reach, of.skipped, of.columns) == (96, 901, 107)
    assert divide(window=5000).extent.skipped == 0


def extents(heads: int, groups: int) -> list[Extent]:
    return [
        extent(nodes, heads, groups, context + nodes, window, 0)
        for context in CONTEXTS
        for nodes in (1, 2, 5, 8, 16, 32)
        for window in (None, 512)
    ]


def tiles(plan: Plan) -> tuple[int, bool]:
    """Of a block, and whether it walks one of several spans."""
    template: dict[str, Any] = dict(plan.walk.template)
    return template["TILES"], plan.splits > 1


@pytest.mark.parametrize(("heads", "groups", "size"), MODELS)
def test_cuda_blocks_fit_a_multiprocessor_and_spans_cover_the_columns(heads: int, groups: int, size: int) -> None:
    for of in extents(heads, groups):
        plan = cuda_plan.plan(of, size)
        threads, in_block = plan.walk.group, tiles(plan)[0] * 16
        assert plan.walk.grid == (-(-of.rows // in_block) * threads, groups, plan.splits)
        assert (plan.splits - 1) * plan.span < of.columns <= plan.splits * plan.span
        at_once = int(plan.walk.defines.split()[-1])
        # 64 Ki registers, 227 KiB of shared memory, of which each block takes one more. A thread keeps head_size / 2
        # sums, and needs about 64 registers beside them.
        assert at_once * threads * (size // 2 + 64) <= 65536
        assert plan.walk.shared_bytes is not None
        assert at_once * (plan.walk.shared_bytes + 1024) <= 228 * 1024


@pytest.mark.parametrize(("heads", "groups", "size"), MODELS)
def test_cuda_takes_many_blocks_for_short_contexts_and_few_for_long_ones(heads: int, groups: int, size: int) -> None:
    short, long = (cuda_plan.plan(extent(16, heads, groups, columns, None, 0), size) for columns in (80, 33_000))
    assert tiles(short) == (1, False)
    assert tiles(long)[1]
    assert 66 < long.walk.grid[0] // long.walk.group * groups * long.splits <= 2 * 132


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_the_probe_reaches_every_kind_of_block_of_the_cuda_kernel(size: int) -> None:
    reached = {
        tiles(
            cuda_plan.plan(
                extent(
                    one.nodes,
                    one.heads * one.key_heads,
                    one.key_heads,
                    one.committed + one.nodes,
                    one.window,
                    one.keep,
                ),
                size,
            )
        )
        for one in probed(on_gpu=True)
    }
    assert reached == {(1, False), *((count, True) for count in cuda_plan.WARPS_OF_A_TILE)}
