"""The division of a problem for Metal."""

from __future__ import annotations

from kernels.tree_attention.plan import Extent, Plan, Shape

TILE = 32  # columns that a threadgroup holds at a time
SIMDGROUPS = 8  # of a threadgroup
THREADS = SIMDGROUPS * 32
LEAST_SPAN = 128  # columns: up to there the merge costs more than a longer walk
WANTED_THREADGROUPS = 128  # Apple GPUs have 8 to 80 cores, each with room for a few of this size


def plan(extent: Extent, head_size: int, wanted_threadgroups: int = WANTED_THREADGROUPS) -> Plan:
    """The context is split until there are as many threadgroups as occupy the device."""
    left = extent.columns
    per_simdgroup = rows_per_simdgroup(extent.rows, head_size)
    blocks = -(-extent.rows // (SIMDGROUPS * per_simdgroup))
    most_splits = max(1, -(-wanted_threadgroups // (extent.groups * blocks)))
    splits = -(-left // max(LEAST_SPAN, -(-left // most_splits)))
    span = -(-left // (splits * TILE)) * TILE  # of one length, as the longest decides
    splits = -(-left // span)
    walk = Shape((("ROWS", per_simdgroup),), (blocks * THREADS, extent.groups, splits), THREADS)
    return Plan(extent, span, splits, walk, merge=Shape((), (extent.groups * extent.rows * 32, 1, 1), 32))


def most_rows_per_simdgroup(head_size: int) -> int:
    """A lane keeps head_size / 32 sums of each row in registers: 32 of them at most."""
    return 8 if head_size <= 128 else 4


def rows_per_simdgroup(rows: int, head_size: int) -> int:
    """The least power of two with which one threadgroup has all rows, if there is one: few kernels for all trees."""
    most = most_rows_per_simdgroup(head_size)
    return next((count for count in (1, 2, 4) if count < most and count * SIMDGROUPS >= rows), most)
