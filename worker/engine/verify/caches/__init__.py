"""Caches that know the tree: the mask of a pass, and the commit of its accepted rows.

mlx-lm's own cache objects are adopted by exchanging their class, so models see the caches that they made. Every class
here has `commit(nodes, path)`, which keeps the nodes of `path` of the pass of `nodes` nodes, and `abandon(nodes)`.
"""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models import cache as stock

from worker.engine.verify.caches.arrays import TreeArraysCache
from worker.engine.verify.caches.rotating import TreeRotatingKVCache
from worker.engine.verify.caches.rows import (
    TreeChunkedKVCache,
    TreeConcatenateKVCache,
    TreeKVCache,
    TreeQuantizedKVCache,
)


class TreeCacheList(stock.CacheList):  # type: ignore[misc]
    """Several caches of one layer."""

    caches: tuple[Any, ...]

    def commit(self, nodes: int, path: Sequence[int]) -> None:
        for cache in self.caches:
            cache.commit(nodes, path)

    def abandon(self, nodes: int) -> None:
        for cache in self.caches:
            cache.abandon(nodes)


TREE_CLASSES: dict[type, type] = {
    stock.KVCache: TreeKVCache,
    stock.QuantizedKVCache: TreeQuantizedKVCache,
    stock.ConcatenateKVCache: TreeConcatenateKVCache,
    stock.ChunkedKVCache: TreeChunkedKVCache,
    stock.RotatingKVCache: TreeRotatingKVCache,
    stock.ArraysCache: TreeArraysCache,
    stock.CacheList: TreeCacheList,
}


def adoptable(cache: Sequence[Any]) -> bool:
    """Whether every layer's cache is of a class that has a tree form."""
    return all(type(layer) in TREE_CLASSES for layer in flat(cache))


def adopt(cache: Sequence[Any]) -> list[Any]:
    """Turn caches, as the model made them, into tree caches in place."""
    assert adoptable(cache)
    for layer in flat(cache):
        layer.__class__ = TREE_CLASSES[type(layer)]
    return list(cache)


def flat(cache: Sequence[Any]) -> list[Any]:
    """All cache objects: lists of several caches and, after each, its members."""
    found = []
    for layer in cache:
        found.append(layer)
        if isinstance(layer, stock.CacheList):
            found += flat(layer.caches)
    return found


def members(cache: Sequence[Any]) -> list[Any]:
    """The cache objects that hold something themselves: in the place of a list of several caches, its members."""
    return [layer for layer in flat(cache) if not isinstance(layer, stock.CacheList)]
