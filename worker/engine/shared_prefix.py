"""How far two token sequences agree, which is what can be reused of the one for the other."""

from collections.abc import Sequence


def shared_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading tokens that both have in common."""
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))
