"""Mixers that nothing is known of, only that they are causal: each root-to-leaf path of the tree as a sequence.

The paths are the batch axis. Every one starts from the state before the tree, and each node takes its row from a path
that holds it. Costs a state per path, and nodes that several paths share are computed once per path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.engine.verify.caches.arrays import TreeArraysCache
from worker.engine.verify.recurrent.mixer import Call
from worker.engine.verify.tree_pass import Paths, suspended


def follow_by_path_unroll(call: Call) -> Any:
    """The mixer's outputs: whatever it returns per token, for all nodes, [1, N, ...]."""
    paths = call.current.paths
    with suspended():
        outputs = _run(call, paths.rows, _scratch(call.cache, paths.rows.shape[0]))
    call.cache.record(lambda cache, path: _replay(call, cache, path))
    return _mapped(outputs, lambda value: _of_nodes(value, paths))


def _replay(call: Call, cache: TreeArraysCache, path: Sequence[int]) -> None:
    """Run the accepted path as mlx-lm would; what it returns is never computed."""
    assert cache is call.cache
    _run(call, mx.array([list(path)]), cache)


def _run(call: Call, rows: mx.array, cache: ArraysCache) -> Any:
    """Run the mixer on sequences [P, L] of nodes, with `cache` in the place of its own."""

    def replaced(value: Any) -> Any:
        if value is call.cache:
            return cache
        return mx.take(value.squeeze(0), rows, axis=0) if _has_rows(value, 1, call.current.nodes) else value

    args = [_mapped(value, replaced) for value in call.args]
    options = {name: _mapped(value, replaced) for name, value in call.options.items()}
    return call.run(*args, **options)


def _scratch(cache: TreeArraysCache, paths: int) -> ArraysCache:
    """A cache of mlx-lm's own with the same state for each path; what is written into it is lost."""
    scratch = ArraysCache(len(cache.cache))
    scratch.cache = [
        None if state is None else mx.broadcast_to(state, (paths, *state.shape[1:])) for state in cache.cache
    ]
    return scratch


def _of_nodes(value: Any, paths: Paths) -> Any:
    """The rows [1, N, ...] of the nodes, of rows [P, L, ...] of paths."""
    if not _has_rows(value, *paths.rows.shape):
        return value
    return mx.take(value.flatten(0, 1), paths.slots, axis=0)[None]


def _has_rows(value: Any, sequences: int, length: int) -> bool:
    return isinstance(value, mx.array) and value.ndim >= 2 and value.shape[:2] == (sequences, length)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)
