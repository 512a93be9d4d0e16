"""Running ahead token by token, over cache layers that hold afterwards what they held before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlx_lm.models.cache import CacheList

from worker.engine.verify.caches import TREE_CLASSES, members
from worker.engine.verify.copies import copied
from worker.engine.verify.restoring import TRIMMED

# What can drop its last tokens exactly does that: a copy would double the whole buffer at its first write.
_TRIMMED = frozenset((*TRIMMED, *(TREE_CLASSES[stock] for stock in TRIMMED)))


@contextmanager
def looking_ahead(layers: Sequence[Any]) -> Iterator[list[Any]]:
    """Layers that go on from `layers`; what is appended to them is lost in the end."""
    lengths = [(layer, layer.offset) for layer in members(layers) if type(layer) in _TRIMMED]
    try:
        yield [_ahead(layer) for layer in layers]
    finally:
        for layer, length in lengths:
            layer.trim(layer.offset - length)


def _ahead(layer: Any) -> Any:
    if isinstance(layer, CacheList):
        twin = copy.copy(layer)
        twin.caches = tuple(_ahead(one) for one in layer.caches)
        return twin
    return layer if type(layer) in _TRIMMED else copied(layer)
