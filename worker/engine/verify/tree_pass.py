"""The tree pass that a thread is in: what hooks and caches need to know of the tree being verified.

Hooks and caches act only while a pass is active, and only on arrays of `nodes` rows; everything else of a model runs as
mlx-lm wrote it. A pass of one node is plain decoding and is never active.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np

from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.tree import TokenTree


@dataclass(frozen=True)
class Paths:
    """The tree as its P root-to-leaf paths of L slots; a shorter path repeats its leaf at the end.

    rows: [P, L] the node in each slot. slots: [N] for each node a slot that holds it, as an index into the P * L slots.
    """

    rows: mx.array
    slots: mx.array


@dataclass(frozen=True)
class Sight:
    """What the nodes see of the `rows` rows before the tree and of the tree, in numbers: see `TreePass.mask`.

    Row r of a cache that forgets stands for a later position, but distances are those of rows: only the first `keep`
    rows, which are seen in any case, can be further away.
    """

    rows: int
    window: int | None = None
    keep: int = 0


class TreePass:
    """One pass over the N nodes of a tree. Arrays are made when something asks for them."""

    def __init__(self, tree: TokenTree, kernels: KernelSet = STOCK) -> None:
        self.tree = tree
        self.kernels = kernels
        self.nodes = len(tree)
        self.is_chain = tree.is_chain
        self.notes: dict[str, Any] = {}  # what adapters and mixers remember until the pass ends
        self._masks: dict[tuple[int, int, int | None, int], mx.array] = {}
        self._sights: dict[int, Sight] = {}
        self._windows: dict[int, mx.array] = {}
        self._positions: dict[int, mx.array] = {}

    @cached_property
    def depths(self) -> mx.array:
        """[N] depth of each node below the root."""
        return mx.array(self.tree.depths, dtype=mx.int32)

    def positions(self, offset: int) -> mx.array:
        """[N] int32 positions of the nodes where the root stands at `offset`, the same array for all layers."""
        if offset not in self._positions:
            self._positions[offset] = mx.array([offset + depth for depth in self.tree.depths], dtype=mx.int32)
        return self._positions[offset]

    @cached_property
    def ancestors(self) -> mx.array:
        """[N, N] booleans: entry (i, j) says that node j is node i or above it."""
        return mx.array(self.tree.ancestors())

    @cached_property
    def ancestor_bits(self) -> mx.array:
        """[N] uint32, of up to 32 nodes: bit j of entry i says that node j is node i or above it."""
        bits: list[int] = []
        for node, parent in enumerate(self.tree.parents):
            bits.append(1 << node | (bits[parent] if parent >= 0 else 0))
        return mx.array(bits, dtype=mx.uint32)

    @cached_property
    def levels(self) -> list[list[int]]:
        """The nodes of each depth, from the root down."""
        levels: list[list[int]] = [[] for _ in range(self.tree.max_depth + 1)]
        for node, depth in enumerate(self.tree.depths):
            levels[depth].append(node)
        return levels

    @cached_property
    def paths(self) -> Paths:
        """The root-to-leaf paths, for layers that can only run over sequences."""
        leaves = [node for node in range(self.nodes) if not self.tree.children(node)]
        length = self.tree.max_depth + 1
        rows = np.zeros((len(leaves), length), dtype=np.int32)
        slots = np.zeros(self.nodes, dtype=np.int32)
        for number, leaf in enumerate(leaves):
            path = self.tree.path(leaf)
            rows[number] = path + [leaf] * (length - len(path))
            slots[path] = number * length + np.arange(len(path))
        return Paths(mx.array(rows), mx.array(slots))

    def windows(self, size: int) -> mx.array:
        """[N, size] rows that end at each node, counting from its own path upwards.

        Indices are into the rows [size - 1 rows before the tree, the N nodes], which is what a causal convolution with
        a kernel of `size` reads.
        """
        if size not in self._windows:
            rows = np.zeros((self.nodes, size), dtype=np.int32)
            for node, parent in enumerate(self.tree.parents):
                above = rows[parent, 1:] if parent >= 0 else np.arange(size - 1)
                rows[node] = [*above, size - 1 + node]
            self._windows[size] = mx.array(rows)
        return self._windows[size]

    def mask(self, offset: int, rows: int | None = None, window: int | None = None, keep: int = 0) -> mx.array:
        """[N, rows + N] booleans: what each node sees of the rows before the tree, and of the tree.

        offset: tokens before the tree. rows: how many of them the cache still holds, all when None: the first `keep`
        and the last rows - keep. window: positions that one-token decoding sees, itself included; of the tree a node
        sees its ancestors and itself.
        """
        rows = offset if rows is None else rows
        key = (offset, rows, window, keep)
        if key not in self._masks:
            mask = self._masks[key] = self._mask(*key)
            if window is None or window > keep:
                self._sights[id(mask)] = Sight(rows, window, keep)
        return self._masks[key]

    def sight(self, mask: Any, columns: int) -> Sight | None:
        """What `mask` says of `columns` columns, the tree's own included; None unless this pass made it for so many.

        The word "causal", which stands for the mask of a chain, is understood as well.
        """
        if isinstance(mask, str):
            return Sight(columns - self.nodes) if mask == "causal" and self.is_chain else None
        found = self._sights.get(id(mask))
        return found if found is not None and found.rows + self.nodes == columns else None

    def _mask(self, offset: int, rows: int, window: int | None, keep: int) -> mx.array:
        # Left to MLX, as it is lazy: where attention needs no mask, none is computed.
        seen = mx.concatenate([mx.ones((self.nodes, rows), dtype=mx.bool_), self.ancestors], axis=1)
        if window is None:
            return seen
        kept = keep if rows < offset else 0
        own = self.depths + offset
        keys = mx.concatenate([mx.arange(kept), mx.arange(offset - (rows - kept), offset), own])
        near = own[:, None] - keys < window - keep
        return seen & (near | (keys < keep) if keep else near)


_thread = threading.local()


def active_pass() -> TreePass | None:
    """The pass that this thread is in."""
    return getattr(_thread, "tree_pass", None)


@contextmanager
def tree_pass(tree: TokenTree, kernels: KernelSet = STOCK) -> Iterator[TreePass]:
    """Make `tree` the active pass of this thread. kernels: what it computes with, where they fit."""
    assert active_pass() is None
    assert len(tree) > 1
    _thread.tree_pass = current = TreePass(tree, kernels)
    try:
        yield current
    finally:
        _thread.tree_pass = None


@contextmanager
def suspended() -> Iterator[None]:
    """Run a piece of the model as if no pass were active: it is given real sequences."""
    current = active_pass()
    _thread.tree_pass = None
    try:
        yield
    finally:
        _thread.tree_pass = current
