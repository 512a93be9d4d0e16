"""A tree pass that was abandoned, and of which any path can still be appended to the layers it ran over.

What a pass computes for a node depends on the nodes above it alone. So when the target accepts tokens that a draft ran,
the draft model need not run them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import members
from worker.engine.verify.caches.arrays import Replay, TreeArraysCache
from worker.engine.verify.caches.rotating import TreeRotatingKVCache


class KeptPass:
    """What one pass of the draft model computed; made after its forward and before the layers abandon it."""

    def __init__(self, tree: TokenTree, layers: Sequence[Any]) -> None:
        self._tree = tree
        self._layers = members(layers)
        self._parts = [part for layer in self._layers if (part := _part(layer, len(tree))) is not None]

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that carry the first of `tokens`, from the root down, as far as the pass had them."""
        if tokens[0] != self._tree.tokens[0]:
            return []
        path = [0]
        for token in tokens[1:]:
            node = self._tree.child(path[-1], token)
            if node is None:
                break
            path.append(node)
        return path

    def fits(self, layers: Sequence[Any]) -> bool:
        """Whether `layers` are the ones it ran over, and hold what they did then."""
        same = members(layers)
        return (
            len(same) == len(self._layers)
            and all(one is other for one, other in zip(same, self._layers, strict=True))
            and all(part.is_current() for part in self._parts)
        )

    def append(self, path: Sequence[int]) -> None:
        """Append the nodes of `path`, from the root on, to the layers."""
        for part in self._parts:
            part.append(path)


class _Part(Protocol):
    """What the pass left for one layer."""

    def is_current(self) -> bool: ...

    def append(self, path: Sequence[int]) -> None: ...


def _part(layer: Any, nodes: int) -> _Part | None:
    """None for a layer that no part of the model uses."""
    if isinstance(layer, TreeArraysCache):
        return _Replays(layer, list(layer.cache), layer.replays) if layer.replays else None
    if layer.keys is None:
        return None
    length, keys, values = layer.offset - nodes, layer.keys, layer.values
    if isinstance(layer, TreeRotatingKVCache):
        return _Rows(layer, length, keys[..., -nodes:, :], values[..., -nodes:, :])
    return _Rows(layer, length, *layer.fresh_rows) if layer.fresh_rows else None


@dataclass(frozen=True)
class _Rows:
    """Keys and values [1, heads, nodes, width] of a pass over a layer that held `length` tokens."""

    layer: Any
    length: int
    keys: mx.array
    values: mx.array

    def is_current(self) -> bool:
        return bool(self.layer.offset == self.length)

    def append(self, path: Sequence[int]) -> None:
        index = mx.array(list(path))
        self.layer.update_and_fetch(self.keys[..., index, :], self.values[..., index, :])


@dataclass(frozen=True)
class _Replays:
    """How to advance recurrent state, and the arrays of the state before the pass."""

    layer: TreeArraysCache
    before: list[mx.array | None]
    replays: list[Replay]

    def is_current(self) -> bool:
        return all(one is other for one, other in zip(self.layer.cache, self.before, strict=True))

    def append(self, path: Sequence[int]) -> None:
        for replay in self.replays:
            replay(self.layer, path)
