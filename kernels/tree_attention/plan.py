"""How a problem is divided, on any back end: rows into blocks, columns into spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Extent:
    """What a call attends over. A row of a key/value head is a pair of a query head that shares it and a node.

    reach: distance in positions below which a node sees a column. skipped: columns behind the first `keep` that no
    node sees. columns: those that are left.
    """

    nodes: int
    heads_per_group: int
    groups: int
    committed: int
    keep: int
    reach: int
    skipped: int
    columns: int

    @property
    def rows(self) -> int:
        """Of one key/value head."""
        return self.heads_per_group * self.nodes


def extent(nodes: int, heads: int, groups: int, columns: int, window: int | None, keep: int) -> Extent:
    """columns: of the keys, the tree's included."""
    committed = columns - nodes
    reach = UNBOUNDED if window is None else window - keep
    # The root sees the least position of all nodes: committed - reach + 1.
    skipped = max(0, committed - reach + 1 - keep)
    return Extent(
        nodes=nodes,
        heads_per_group=heads // groups,
        groups=groups,
        committed=committed,
        keep=keep,
        reach=reach,
        skipped=skipped,
        columns=columns - skipped,
    )


@dataclass(frozen=True)
class Shape:
    """How a kernel is made and launched. grid, in threads, and group as MLX takes them.

    defines: in front of the header. shared_bytes: dynamic shared memory of a block; None where there is no such thing.
    """

    template: tuple[tuple[str, Any], ...]
    grid: tuple[int, int, int]
    group: int
    defines: str = ""
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Plan:
    """One call. span: columns of one split. walk: over the spans. merge: of the spans, where there are several."""

    extent: Extent
    span: int
    splits: int
    walk: Shape
    merge: Shape

    @property
    def rows(self) -> int:
        """Of all key/value heads."""
        return self.extent.groups * self.extent.rows

    @property
    def problem(self) -> list[int]:
        """What the kernel of the spans is told; eight numbers, for MLX passes fewer in another address space."""
        of = self.extent
        return [of.nodes, of.heads_per_group, of.committed, of.keep, of.reach, of.skipped, of.columns, self.span]
