"""The drafter: the context of what was committed, and from it a block and a tree of guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from api.errors import ModelError
from worker.engine.drafters.dflash.backbone import Backbone
from worker.engine.drafters.dflash.best_first import Candidates, grow
from worker.engine.drafters.dflash.checkpoint import load_backbone
from worker.engine.drafters.dflash.config import read_dflash_config
from worker.engine.drafters.dflash.head import DraftHead
from worker.engine.drafters.dflash.settings import DFlashSettings
from worker.engine.drafters.dflash.slots import IndependentSlots, Lattice
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.metadata import TargetShape
from worker.engine.drafters.next_tokens import NextTokens
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.memory import ReadWeights, read_weights
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps, head_and_inner


def load_dflash(
    directory: Path, target: Any, settings: DFlashSettings | None = None, read: ReadWeights = read_weights
) -> DFlashDrafter:
    """The drafter in `directory`, for a target as mlx-lm loads it. read: reads its weights.

    Raises ModelError, also when the two do not pair.
    """
    settings = settings or DFlashSettings()
    try:
        shape = _shape(target)
    except ValueError as error:
        raise ModelError(f"{directory}: no block drafter can serve this target: {error}") from error
    config = read_dflash_config(directory, shape.layers)
    config.check_pair(directory / "config.json", shape)
    return DFlashDrafter(load_backbone(directory, config, settings.bits, read), target, settings, read)


def _shape(target: Any) -> TargetShape:
    """Raises ValueError for a target whose blocks cannot be tapped."""
    _, inner = head_and_inner(target)
    Taps(target, blocks=(0,)).check()
    width = int(inner.embed_tokens(mx.array([0])).shape[-1])
    return TargetShape(width, int(inner.embed_tokens.weight.shape[0]), len(inner.layers))


class DFlashDrafter:
    """Guesses of one network for one target. All of its state is in the layers that it is given."""

    levels: int | None = None

    def __init__(
        self, backbone: Backbone, target: Any, settings: DFlashSettings, read: ReadWeights = read_weights
    ) -> None:
        self._backbone, self._settings = backbone, settings
        config = backbone.config
        self.name = "dflash2" if config.second else "dflash"
        self.taps = Taps(target, blocks=config.target_layer_ids)
        self._head = DraftHead(target, self.taps, config, settings, read)
        scale = settings.embedding_scale
        self._scale = (_embedding_scale(target) if scale is None else scale) * config.input_embedding_scale
        self._slots = (settings.block_size or config.block_size) - 1

    @property
    def guessed_tokens(self) -> int | None:
        """How many tokens it guesses from; None = all."""
        return None if self._head.ids is None else len(self._head.ids)

    def new_cache(self) -> list[Any]:
        return self._backbone.new_context()

    def prefill(self, prompt: Sequence[int]) -> None:
        pass

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        assert hidden is not None
        assert len(tokens) == hidden.shape[0]
        if not tokens:
            return
        self._backbone.append_context(hidden, layers)
        # Otherwise rounds without a draft would hold on to the passes that their rows come from.
        mx.async_eval([(layer.keys, layer.values) for layer in layers])  # type: ignore[no-untyped-call]

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        slots = min(self._slots, limits.depth)
        if limits.nodes < 2 or slots < 1:
            return
        # Always the whole block: what a slot sees of it must not depend on how deep the tree may be.
        hidden = self._block(tree.tokens[0], context)[1 : 1 + slots]
        odds = self._odds(hidden, tree.tokens[0], context.guide)
        grow(tree, limits, odds.following, slots, self._settings.min_value)

    def commit(self, tokens: Sequence[int]) -> None:
        pass

    def _block(self, root: int, context: DraftContext) -> mx.array:
        """Normed hidden states of the root and of the mask slots after it, [1 + slots, hidden]."""
        tokens = mx.array([root] + [self._backbone.config.mask_token_id] * self._slots)
        embeddings = self.taps.embed(tokens) * self._scale
        return self._backbone.block(embeddings, context.position, context.layers, self._settings.mask)

    def _odds(self, hidden: mx.array, root: int, guide: Guide) -> IndependentSlots | Lattice:
        """What may stand in the slots whose normed hidden states are `hidden` [slots, hidden]."""
        logits, ids = self._head(hidden), self._head.ids
        columns = None if ids is None else mx.broadcast_to(mx.array(ids), logits.shape)
        logits = guide.processed(logits, ids=columns)

        def rank(expected: NextTokens, depth: int) -> Candidates:
            return guide.candidates(expected.logprobs, depth, self._settings.children, expected.ids)

        if self._backbone.config.second is None:
            return IndependentSlots(logits, ids, rank)
        return Lattice(*self._backbone.candidate_selector.lattice(hidden, logits, ids, root), rank)


def _embedding_scale(target: Any) -> float:
    """What the target multiplies its embeddings by; Gemma models alone do so among those with published drafters."""
    _, inner = head_and_inner(target)
    stated = getattr(inner, "embed_scale", None)
    if isinstance(stated, int | float):
        return float(stated)
    described = getattr(inner, "args", None) or getattr(inner, "config", None)
    is_gemma = str(getattr(described, "model_type", "")).startswith("gemma")
    return math.sqrt(inner.embed_tokens(mx.array([0])).shape[-1]) if is_gemma else 1.0
