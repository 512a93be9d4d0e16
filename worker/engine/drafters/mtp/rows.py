"""The head's cache as its attention sees it.

Row i of the layer belongs to token i and holds the keys and values of the pair (token i, hidden state of token i - 1),
at position i - 1. Row 0 has no pair: it is there so that rows count tokens, and attention never sees it.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import KVCache


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
    """The committed rows of a layer, and after them rows of guesses that the layer never gets.

    The committed rows are copied once per draft; the levels of a draft are appended in place.
    """

    def __init__(self, layer: KVCache) -> None:
        self._committed = layer.offset - 1
        self._rows = KVCache()
        self._rows.keys = layer.keys[..., 1 : layer.offset, :]
        self._rows.values = layer.values[..., 1 : layer.offset, :]
        self._rows.offset = self._committed
        self._ancestors = np.zeros((0, 0), dtype=np.bool_)
        self.offset = mx.zeros((0,), dtype=mx.int32)

    def begin_level(self, depth: int, parents: list[int]) -> mx.array | None:
        """Make the next pass a level of nodes at `depth`; returns its mask [nodes, rows], None when all rows are seen.

        parents: by the number of their row among the drafted ones; the root, alone at depth 0, has none (-1).
        """
        before, nodes = len(self._ancestors), len(parents)
        grown = np.zeros((before + nodes, before + nodes), dtype=np.bool_)
        grown[:before, :before] = self._ancestors
        for node, parent in enumerate(parents, start=before):
            if parent >= 0:
                grown[node] = grown[parent]
            grown[node, node] = True
        self._ancestors = grown
        self.offset = mx.full((nodes,), self._committed + depth, dtype=mx.int32)
        return self._mask(grown[before:])

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        fetched: tuple[mx.array, mx.array] = self._rows.update_and_fetch(keys, values)
        return fetched

    def _mask(self, seen: npt.NDArray[np.bool_]) -> mx.array | None:
        if seen.all():
            return None
        committed = mx.ones((len(seen), self._committed), dtype=mx.bool_)
        return mx.concatenate([committed, mx.array(seen)], axis=1)
