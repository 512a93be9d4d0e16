"""The division of a problem, by hand."""

import pytest

from kernels.tree_attention.plan import Plan, plan


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
    return plan(nodes, heads, groups, columns, size, window, keep, wanted)


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
    assert (division.rows_per_simdgroup, division.blocks) == (per_simdgroup, blocks)
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
    division = divide(window=100, keep=4)
    assert (division.reach, division.skipped, division.columns) == (96, 901, 107)
    assert divide(window=5000).skipped == 0
