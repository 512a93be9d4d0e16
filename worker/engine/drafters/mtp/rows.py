"""The head's cache as its attention sees it.

Row i of the layer belongs to token i and holds the keys and values of the pair (token i, hidden state of token i - 1),
at position i - 1. Row 0 has no pair: it is there so that rows count tokens, and attention never sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from worker.engine.tree import TokenTree


class CommittedRows:
    """Takes the rows of tokens that have entered the target's cache."""

    def __init__(self, layer: KVCache) -> None:
        self._layer = layer

    @property
    def offset(self) -> int:
        """The position of the next row: -1 of row 0, which no one reads."""
        return int(self._layer.offset) - 1

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        fetched: tuple[mx.array, mx.array] = self._layer.update_and_fetch(keys, values)
        return fetched


class DraftedRows:
    """The committed rows of a layer, and after them rows of tree nodes, which are to be trimmed after the draft."""

    def __init__(self, layer: KVCache) -> None:
        self._layer, self._committed = layer, layer.offset - 1
        self._nodes: list[int] = []
        self.offset = mx.zeros((0,), dtype=mx.int32)

    def begin_level(self, tree: TokenTree, level: Sequence[int]) -> mx.array | None:
        """Make the next rows those of the nodes in `level`, whose ancestors all have rows.

        Returns the mask [nodes, rows] of their pass, None when they see every row.
        """
        self._nodes += level
        self.offset = mx.array([self._committed + tree.depths[node] for node in level], dtype=mx.int32)
        seen = np.array([np.isin(self._nodes, tree.path(node)) for node in level])
        if seen.all():
            return None
        committed = mx.ones((len(level), self._committed), dtype=mx.bool_)
        return mx.concatenate([committed, mx.array(seen)], axis=1)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows, their_values = self._layer.update_and_fetch(keys, values)
        return rows[..., 1:, :], their_values[..., 1:, :]
