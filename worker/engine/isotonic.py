"""Isotonic regression: the monotone sequence that is closest to what was measured."""

from collections.abc import Sequence


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The closest non-decreasing sequence in weighted least squares, by pooling adjacent violators."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = blocks[-2:]
            total = low_weight + high_weight
            pooled = (low * low_weight + high * high_weight) / total
            blocks[-2:] = [(pooled, total, low_size + high_size)]
    return [value for value, _, size in blocks for _ in range(size)]
