"""The assistant as a drafter: it keeps the target's hidden states, and borrows everything else when it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from worker.engine.drafters.expansion import Expansion, expand
from worker.engine.drafters.gemma_assistant.config import AssistantConfig
from worker.engine.drafters.gemma_assistant.lender import Lender
from worker.engine.drafters.gemma_assistant.network import Assistant
from worker.engine.drafters.next_tokens import NextTokens, shortlist
from worker.engine.drafters.options import Options
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps

# All nodes of a level are one pass over the same keys and values, so a wide beam costs hardly more than a chain.
EXPANSION = Expansion(depth=4, beam=4, children=4, min_value=0.05)

Positions = Literal["constant", "advancing"]


@dataclass(frozen=True)
class AssistantSettings:
    """positions: whether every step stands at the pending token's position, as published, or each at its token's."""

    expansion: Expansion = EXPANSION
    positions: Positions = "constant"

    @classmethod
    def asked(cls, options: Options) -> AssistantSettings:
        """What a user asked for. Raises ModelError."""
        return cls(EXPANSION.asked(options), options.choice("positions", get_args(Positions)) or "constant")


class GemmaAssistantDrafter:
    """Guesses of one assistant for one target. Its one layer holds the target's normed hidden states."""

    name = "gemma_assistant"

    def __init__(
        self, network: Assistant, config: AssistantConfig, lender: Lender, settings: AssistantSettings
    ) -> None:
        self._network, self._lender, self._settings = network, lender, settings
        self._kinds = sorted(set(config.layer_types))
        self._window = min(config.sliding_window, lender.sliding_window)
        self.taps: Taps | None = lender.taps

    @property
    def levels(self) -> int | None:
        return self._settings.expansion.depth

    def new_cache(self) -> list[Any]:
        return [KVCache()]

    def prefill(self, prompt: Sequence[int]) -> None:
        pass

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        assert hidden is not None
        assert len(tokens) == hidden.shape[0]
        if not tokens:
            return
        [states] = layers
        states.update_and_fetch(hidden[None, None], mx.zeros((1, 1, len(tokens), 0), dtype=hidden.dtype))
        # Otherwise rounds without a draft would hold on to the passes that the states come from.
        mx.async_eval(states.keys)  # type: ignore[no-untyped-call]

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        committed = context.position
        if committed == 0:
            return  # there is no state to step from
        [states] = context.layers
        assert states.offset == committed
        # By node, the state that the steps below it start from; -1 stands above the root.
        known = {-1: states.keys[0, 0, committed - 1]}
        guide = context.guide
        borrowed = self._lender.lend(context.target_layers, committed, self._kinds, self._window)

        def follow(grown: TokenTree, level: Sequence[int]) -> list[NextTokens]:
            embeddings = self._lender.embed(mx.array([grown.tokens[node] for node in level]))
            hidden = mx.stack([known[grown.parents[node]] for node in level])
            positions = mx.array([self._position(committed, grown.depths[node]) for node in level])
            normed, following = self._network(embeddings, hidden, borrowed, positions)
            known.update(zip(level, following, strict=True))
            logits, ids = self._network.head(normed)
            return shortlist(guide.processed(logits, grown, level, ids), ids)

        expand(tree, limits, self._settings.expansion, guide, follow)

    def commit(self, tokens: Sequence[int]) -> None:
        pass

    def _position(self, committed: int, depth: int) -> int:
        return committed + depth if self._settings.positions == "advancing" else committed
