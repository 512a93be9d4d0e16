"""Positions of tree nodes: one permanent hook on the rope primitive, active only inside a tree pass.

All attention code of mlx-lm reaches rotary embeddings through `mx.fast.rope`, whatever its module is called, and passes
the offset of the first row. Inside a tree pass row i stands at offset + depth(i) instead of offset + i.
"""

from typing import Any

import mlx.core as mx

from worker.engine.verify.tree_pass import TreePass, active_pass

_rope = mx.fast.rope


def first_offset(offset: Any) -> Any:
    """The offset of the one sequence, of an int, a scalar array or a vector with one entry per sequence."""
    return offset.reshape(-1)[:1] if isinstance(offset, mx.array) and offset.ndim else offset


def node_positions(current: TreePass, offset: Any) -> mx.array:
    """[N] absolute positions of the nodes, given the offset that a model passed for the first row."""
    if not isinstance(offset, int):
        positions: mx.array = current.depths + first_offset(offset)
        return positions
    return current.positions(offset)


def _tree_rope(x: mx.array, dims: int, **options: Any) -> mx.array:
    current = active_pass()
    # The rows of a chain stand at consecutive positions already.
    if current is None or current.is_chain or x.shape[-2] != current.nodes:
        return _rope(x, dims, **options)
    positions = node_positions(current, options.pop("offset"))
    # Nodes become the batch axis, where rope takes one offset per row; in the usual layout nothing is copied.
    return _rope(x.swapaxes(0, -2), dims, offset=positions, **options).swapaxes(0, -2)


def install_rope_hook() -> None:
    """Hook the primitive, once and for good: removing it could strip it from under another thread's pass."""
    mx.fast.rope = _tree_rope  # type: ignore[assignment]
