"""Rows that a commit keeps, as an array that all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import mlx.core as mx


def index_of(rows: Sequence[int]) -> mx.array:
    """[n] int32."""
    return _index(tuple(rows))


@lru_cache(maxsize=8)
def _index(rows: tuple[int, ...]) -> mx.array:
    return mx.array(rows, dtype=mx.int32)
