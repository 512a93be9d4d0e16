"""A drafter that is told the truth now and then: random networks are never right about a random target."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from worker.engine.drafters.protocol import DraftContext, Drafter, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps

MOST_HINTS = 3


class HintedDrafter:
    """`drafter`, with right guesses beside its own: none, one, two or three, as the text goes on.

    texts: what follows the prompt, of greedy (False) and of sampled requests (True); to be set before each prompt.
    """

    def __init__(self, drafter: Drafter, texts: Mapping[bool, Sequence[int]]) -> None:
        self._drafter, self.texts = drafter, texts
        self.name = drafter.name
        self._prompt_length = 0

    @property
    def taps(self) -> Taps | None:
        return self._drafter.taps

    def new_cache(self) -> list[Any]:
        return self._drafter.new_cache()

    def prefill(self, prompt: Sequence[int]) -> None:
        self._prompt_length = len(prompt)
        self._drafter.prefill(prompt)

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        self._drafter.absorb(tokens, hidden, layers)

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        self._drafter.draft(tree, DraftLimits(max(1, limits.nodes - MOST_HINTS), limits.depth), context)
        emitted = context.position + 1 - self._prompt_length
        right = self.texts[context.guide.sampling.temperature > 0][emitted:]
        node = 0
        for token in right[: min(emitted % (MOST_HINTS + 1), limits.depth)]:
            node = tree.add(node, token, 0.9)

    def commit(self, tokens: Sequence[int]) -> None:
        self._drafter.commit(tokens)
