"""A drafter over a real target: prompts, drafts and passes as the engine makes them, one at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from worker.engine.drafters.guide import Guide
from worker.engine.drafters.protocol import DraftContext, Drafter, DraftLimits
from worker.engine.sampling import History, Sampling
from worker.engine.session import PrefixTree, Session
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import flat
from worker.engine.verify.verifier import Verifier


@dataclass(frozen=True)
class DrafterCase:
    """target: a tiny model. make: a new drafter for it. vocabulary: of both."""

    target: Any
    make: Callable[[], Drafter]
    vocabulary: int


class Rig:
    """One drafter in use. `tokens` is the text so far, the pending token included."""

    def __init__(self, case: DrafterCase, sampling: Sampling | None = None, prefix_bytes: int = 0) -> None:
        self.case, self.drafter = case, case.make()
        self.sampling = sampling or Sampling()
        self.session = Session(Verifier(case.target), PrefixTree(prefix_bytes))
        self.session.serve(self.drafter)
        self.tokens: list[int] = []

    @property
    def verifier(self) -> Verifier:
        return self.session._verifier

    def prompt(self, tokens: Sequence[int], chunk: int = 2048) -> int:
        """Begin a request; returns how many of its tokens were cached."""
        self.tokens = list(tokens)
        cached = self.session.begin(tokens, chunk)
        self.drafter.prefill(tokens)
        return cached

    @property
    def layers(self) -> list[Any]:
        """Those of the drafter, up to date."""
        self.session.catch_up()
        return self.session.drafter_layers

    def draft(self, limits: DraftLimits) -> TokenTree:
        tree = TokenTree(self.tokens[-1])
        position = len(self.session.tokens)
        assert position == len(self.tokens) - 1
        guide = Guide(self.sampling, History(self.tokens, ()))
        self.drafter.draft(tree, limits, DraftContext(position, self.layers, self.session.cache, guide))
        return tree

    def pass_over(self, token: int) -> None:
        """A round without a draft, which emits `token`."""
        self.accept(TokenTree(self.tokens[-1]), 0, token)

    def accept(self, tree: TokenTree, node: int, token: int) -> None:
        """A pass over `tree` that accepts the path to `node`, and after it emits `token`."""
        path = tree.path(node)
        mx.eval(self.verifier.forward(tree, self.session.cache))
        hidden = self.verifier.hidden
        self.verifier.commit(tree, path, self.session.cache)
        committed = [tree.tokens[one] for one in path]
        self.session.extend(committed, None if hidden is None else hidden[mx.array(path)])
        emitted = [*committed[1:], token]
        self.drafter.commit(emitted)
        self.tokens += emitted


def content_of(layers: Sequence[Any]) -> list[np.ndarray]:
    """All that the layers hold, rows only as far as they are filled."""
    arrays = []
    for layer in flat(layers):
        for name, value in sorted(vars(layer).items()):
            for array in value if isinstance(value, list | tuple) else [value]:
                if isinstance(array, mx.array):
                    rows = array[..., : layer.offset, :] if name in ("keys", "values") else array
                    arrays.append(np.array(rows.astype(mx.float32)))
    return arrays
