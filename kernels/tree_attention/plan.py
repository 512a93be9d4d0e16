"""How a problem is divided: rows into blocks, columns into spans. Both back ends run the same division."""

from __future__ import annotations

from dataclasses import dataclass

TILE = 32  # columns that a threadgroup holds at a time
SIMDGROUPS = 8  # of a threadgroup
LEAST_SPAN = 128  # columns: up to there the merge costs more than a longer walk
UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Plan:
    """One call. A row of a key/value head is a pair of a query head that shares it and a node.

    rows_per_simdgroup: the template value ROWS. blocks: threadgroups that share the rows of a key/value head, and so
    the number of times that a byte of keys and values is read. reach: distance in positions below which a node sees a
    column. skipped: columns behind the first `keep` that no node sees. columns: those that are left. span: columns of
    one split, a multiple of TILE.
    """

    nodes: int
    heads_per_group: int
    groups: int
    committed: int
    keep: int
    reach: int
    skipped: int
    columns: int
    rows_per_simdgroup: int
    blocks: int
    span: int
    splits: int

    @property
    def rows(self) -> int:
        """Rows of all key/value heads."""
        return self.groups * self.heads_per_group * self.nodes

    @property
    def problem(self) -> list[int]:
        """What the kernel of the spans is told; eight numbers, for MLX passes fewer in another address space."""
        of_rows = [self.nodes, self.heads_per_group, self.committed, self.keep]
        return [*of_rows, self.reach, self.skipped, self.columns, self.span]


def plan(
    nodes: int,
    heads: int,
    groups: int,
    columns: int,
    head_size: int,
    window: int | None,
    keep: int,
    wanted_threadgroups: int,
) -> Plan:
    """wanted_threadgroups: how many occupy the device; the context is split until there are so many."""
    committed = columns - nodes
    reach = UNBOUNDED if window is None else window - keep
    # The root sees the least position of all nodes: committed - reach + 1.
    skipped = max(0, committed - reach + 1 - keep)
    left = columns - skipped
    rows = heads // groups * nodes
    per_simdgroup = rows_per_simdgroup(rows, head_size)
    blocks = -(-rows // (SIMDGROUPS * per_simdgroup))
    most_splits = max(1, -(-wanted_threadgroups // (groups * blocks)))
    splits = -(-left // max(LEAST_SPAN, -(-left // most_splits)))
    span = -(-left // (splits * TILE)) * TILE  # of one length, as the longest decides
    return Plan(
        nodes=nodes,
        heads_per_group=heads // groups,
        groups=groups,
        committed=committed,
        keep=keep,
        reach=reach,
        skipped=skipped,
        columns=left,
        rows_per_simdgroup=per_simdgroup,
        blocks=blocks,
        span=span,
        splits=-(-left // span),
    )


def most_rows_per_simdgroup(head_size: int) -> int:
    """A lane keeps head_size / 32 sums of each row in registers: 32 of them at most."""
    return 8 if head_size <= 128 else 4


def rows_per_simdgroup(rows: int, head_size: int) -> int:
    """The least power of two with which one threadgroup has all rows, if there is one: few kernels for all trees."""
    most = most_rows_per_simdgroup(head_size)
    return next((count for count in (1, 2, 4) if count < most and count * SIMDGROUPS >= rows), most)
