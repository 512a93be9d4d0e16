"""Adapters: position or mask logic of single families that neither the rope hook nor the caches reach."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Limit = Callable[[int, int], Literal["tree", "chain", "plain"]]
"""limit(offset, nodes): of which shape a pass over `nodes` nodes may be after `offset` tokens."""


@dataclass(frozen=True)
class Adapters:
    names: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    reusable: int | None = None


def apply_adapters(model: Any) -> Adapters:
    """Adapt `model`, once."""
    return Adapters()
