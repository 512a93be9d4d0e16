"""A drafter that keeps what it was given to absorb, token by token and row by row."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from scripted_drafters import Script, ScriptedDrafter

from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps


class FollowingDrafter(ScriptedDrafter):
    """Its one layer holds the ids of the committed tokens. `calls` has the tokens and rows of every `absorb`.

    taps: what it says that it reads of the target.
    """

    name = "following"

    def __init__(self, script: Script = lambda emitted, tree, limits: None, taps: Taps | None = None) -> None:
        super().__init__(script)
        self.taps = taps
        self.calls: list[tuple[list[int], Any]] = []

    def new_cache(self) -> list[Any]:
        return [KVCache()]

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        self.calls.append((list(tokens), None if hidden is None else np.array(hidden)))
        rows = mx.array(list(tokens), dtype=mx.float32)[None, None, :, None]
        layers[0].update_and_fetch(rows, rows)

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        assert absorbed(context.layers) == self.tokens[: context.position]
        super().draft(tree, limits, context)

    @property
    def sizes(self) -> list[int]:
        """How many tokens each call brought."""
        return [len(tokens) for tokens, _ in self.calls]


def absorbed(layers: Sequence[Any]) -> list[int]:
    """The tokens that the layers of a FollowingDrafter hold."""
    layer = layers[0]
    return [] if layer.keys is None else [int(token) for token in layer.keys[0, 0, : layer.offset, 0].tolist()]
