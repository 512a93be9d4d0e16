"""The largest entries of rows of logits."""

from __future__ import annotations

import math

import mlx.core as mx


def largest(rows: mx.array, count: int) -> mx.array:
    """Places [n, min(count, width)] of the largest entries of each of `rows` [n, width], ascending.

    In two steps, as partitioning 248 thousand columns takes seven times as long (15 rows on two x86 cores: 89 ms
    against 13): the `count` largest lie in those `count` spans of columns whose maxima are largest.
    """
    number, width = rows.shape
    if count >= width:
        return mx.broadcast_to(mx.arange(width), rows.shape)
    span = math.isqrt(width // count)
    whole = width // span * span
    best_spans = _best(rows[:, :whole].reshape(number, -1, span).max(axis=-1), count)
    within = (best_spans[..., None] * span + mx.arange(span)).reshape(number, -1)
    rest = mx.broadcast_to(mx.arange(whole, width), (number, width - whole))
    places = mx.concatenate([within, rest], axis=-1)
    best = _best(mx.take_along_axis(rows, places, axis=-1), count)
    return mx.sort(mx.take_along_axis(places, best, axis=-1), axis=-1)


def _best(rows: mx.array, count: int) -> mx.array:
    """Places [n, count] of the largest of each row, in no order."""
    return mx.argpartition(-rows, kth=count - 1, axis=-1)[:, :count]
