"""The draft model as a drafter: its own cache beside the target's, and trees out of its own probabilities."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from worker.engine.drafters.draft_model.kept_pass import KeptPass
from worker.engine.drafters.expansion import Expansion, expand
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.looking_ahead import looking_ahead
from worker.engine.drafters.next_tokens import NextTokens, shortlist
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import members
from worker.engine.verify.taps import Taps
from worker.engine.verify.verifier import Mode, Verifier, evaluate

EXPANSION = Expansion(depth=5, beam=3, children=3, min_value=0.05)


class DraftModelDrafter:
    """Guesses of one language model. Its layers hold what it computed for the committed tokens.

    mode: how a pass over several tokens of it is right, see `Verifier`; without tree passes it drafts a chain, with
    siblings beside each token. vocabulary: ids that both models have; what it says of others is cut off. context:
    tokens of its own window, beyond which it drafts nothing.
    """

    name = "draft_model"
    taps: Taps | None = None

    def __init__(
        self, model: Any, mode: Mode, vocabulary: int, context: int = sys.maxsize, expansion: Expansion = EXPANSION
    ) -> None:
        self._verifier = Verifier(model, mode)
        self._vocabulary, self._context, self._expansion = vocabulary, context, expansion
        self._passes: list[KeptPass] = []

    @property
    def levels(self) -> int | None:
        return self._expansion.depth

    def new_cache(self) -> list[Any]:
        return self._verifier.new_cache()

    def prefill(self, prompt: Sequence[int]) -> None:
        self._passes = []

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        if not tokens:
            return
        known = [self._known(token) for token in tokens]
        rest = known[self._take_over(known, layers) :]
        if rest:
            self._run(rest, layers)
        # Otherwise rounds without a draft would hold on to all that their rows are computed from.
        mx.async_eval([vars(layer) for layer in members(layers)])  # type: ignore[no-untyped-call]

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        self._passes = []
        shape, layers, guide = self._expansion, context.layers, context.guide
        limits = replace(limits, depth=min(limits.depth, self._context - context.position))
        if self._verifier.shape_after(context.position, 1 + shape.beam * (shape.depth - 1)) == "tree":
            expand(tree, limits, shape, guide, lambda grown, level: self._level(grown, level, guide, layers))
            return
        with looking_ahead(layers) as ahead:
            chain = replace(shape, beam=1)
            expand(tree, limits, chain, guide, lambda grown, level: self._step(grown, level, guide, ahead))

    def commit(self, tokens: Sequence[int]) -> None:
        pass

    def _level(self, grown: TokenTree, level: Sequence[int], guide: Guide, layers: list[Any]) -> list[NextTokens]:
        """What comes after each node of a level, from one pass over them and all nodes above them."""
        if level[0] == 0:
            with looking_ahead(layers) as ahead:
                return self._step(grown, level, guide, ahead)
        tree, places = self._above(grown, level)
        logits = self._verifier.forward(tree, layers)
        self._passes.append(KeptPass(tree, layers))
        expected = self._expected(logits[mx.array(places)], grown, level, guide)
        self._verifier.abandon(tree, layers)
        return expected

    def _above(self, grown: TokenTree, level: Sequence[int]) -> tuple[TokenTree, list[int]]:
        """The nodes of `level` and all above them as a tree, and the places of `level` in it."""
        tree, places = TokenTree(self._known(grown.tokens[0])), {0: 0}
        for node in sorted({node for leaf in level for node in grown.path(leaf)[1:]}):
            places[node] = tree.add(places[grown.parents[node]], grown.tokens[node], grown.confidences[node])
        return tree, [places[node] for node in level]

    def _step(self, grown: TokenTree, level: Sequence[int], guide: Guide, layers: list[Any]) -> list[NextTokens]:
        """The same for a level of one node, whose token alone the layers lack."""
        [node] = level
        logits = self._verifier.step(mx.array([self._known(grown.tokens[node])]), layers)
        return self._expected(logits, grown, level, guide)

    def _expected(self, logits: mx.array, grown: TokenTree, level: Sequence[int], guide: Guide) -> list[NextTokens]:
        return shortlist(guide.processed(logits[:, : self._vocabulary], grown, level))

    def _known(self, token: int) -> int:
        """The token, or another where the draft model has no embedding: the target may draw an id that pads its own."""
        return min(token, self._vocabulary - 1)

    def _take_over(self, tokens: Sequence[int], layers: Sequence[Any]) -> int:
        """Append to the layers what the draft computed already for the first of `tokens`; returns of how many."""
        fitting = [one for one in self._passes if one.fits(layers)]
        self._passes = []
        if not fitting:
            return 0
        longest = max(fitting, key=lambda one: len(one.path(tokens)))
        path = longest.path(tokens)
        if path:
            longest.append(path)
        return len(path)

    def _run(self, tokens: Sequence[int], layers: list[Any]) -> None:
        """Run the model over tokens that its layers lack; one by one where it is wrong over several."""
        length = max((int(getattr(layer, "offset", 0)) for layer in members(layers)), default=0)
        if self._verifier.shape_after(length, len(tokens)) != "plain":
            self._verifier.step(mx.array(list(tokens)), layers)
            return
        for token in tokens:
            self._verifier.step(mx.array([token]), layers)
            evaluate(layers)
