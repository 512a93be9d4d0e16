"""A draft tree as the kernels and the reference want it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import mlx.core as mx


class Level(NamedTuple):
    """The nodes of one depth, and where in the level before each has its parent."""

    nodes: list[int]
    slots: list[int]


class Tree:
    """N nodes, each after its parent; arrays are made once, so that all layers of a pass may share a Tree."""

    def __init__(self, parents: Sequence[int]) -> None:
        """parents: of each node, -1 where it follows the text before the tree. ValueError if one comes too late."""
        if not parents:
            raise ValueError("a tree needs a node")
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; -1 or an earlier node is needed")
        self.parents = tuple(parents)

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def links(self) -> mx.array:
        """[N] int32, the parents."""
        return mx.array(self.parents, dtype=mx.int32)

    @cached_property
    def levels(self) -> list[Level]:
        """The nodes by depth, from those that follow the text before the tree."""
        levels: list[Level] = []
        places: list[tuple[int, int]] = []
        for node, parent in enumerate(self.parents):
            depth, slot = (places[parent][0] + 1, places[parent][1]) if parent >= 0 else (0, 0)
            if depth == len(levels):
                levels.append(Level([], []))
            places.append((depth, len(levels[depth].nodes)))
            levels[depth].nodes.append(node)
            levels[depth].slots.append(slot)
        return levels
