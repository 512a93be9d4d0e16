"""Positions of tree nodes: one permanent hook on the rope primitive, active only inside a tree pass.

All attention code of mlx-lm reaches rotary embeddings through `mx.fast.rope`, whatever its module is called, and passes
the offset of the first row. Inside a tree pass row i stands at offset + depth(i) instead of offset + i.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from worker.engine.tree import TokenTree


class TreePass:
    """What the hooks need to know of the tree being verified."""

    def __init__(self, tree: TokenTree) -> None:
        self.nodes = len(tree)
        self.depths = mx.array(tree.depths, dtype=mx.int32)
        self.ancestors = mx.array(tree.ancestors())
        self._masks: dict[int, mx.array] = {}

    def mask(self, prefix: int) -> mx.array:
        """[N, prefix + N] booleans: the whole prefix, and of the tree a node's ancestors and itself."""
        if prefix not in self._masks:
            visible = mx.ones((self.nodes, prefix), dtype=mx.bool_)
            self._masks[prefix] = mx.concatenate([visible, self.ancestors], axis=1)
        return self._masks[prefix]


_thread = threading.local()


def active_pass() -> TreePass | None:
    """The tree pass that this thread is in. Chains run without one: their rows are consecutive positions."""
    return getattr(_thread, "tree_pass", None)


@contextmanager
def tree_pass(tree: TokenTree) -> Iterator[TreePass | None]:
    """Make `tree` the active pass of this thread, unless it is a chain."""
    assert active_pass() is None
    _install_hook()
    _thread.tree_pass = None if tree.is_chain else TreePass(tree)
    try:
        yield _thread.tree_pass
    finally:
        _thread.tree_pass = None


_rope = mx.fast.rope


def _tree_rope(x: mx.array, dims: int, **options: Any) -> mx.array:
    current = active_pass()
    if current is None or x.shape[-2] != current.nodes:
        return _rope(x, dims, **options)
    offset = options.pop("offset")
    if isinstance(offset, mx.array) and offset.ndim:
        offset = offset.reshape(-1)[:1]
    # Nodes become the batch axis, where rope takes one offset per row; in the usual layout nothing is copied.
    rotated = _rope(x.swapaxes(0, -2), dims, offset=offset + current.depths, **options)
    return rotated.swapaxes(0, -2)


def _install_hook() -> None:
    # Once and for good: removing it after a pass could strip it from under another thread's pass.
    mx.fast.rope = _tree_rope  # type: ignore[assignment]
