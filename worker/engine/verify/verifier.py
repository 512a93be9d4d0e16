"""Verifier: the target model's passes over prompt chunks and draft trees, and the cache they leave behind."""

from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import adopt, adoptable
from worker.engine.verify.positions import tree_pass

Mode = Literal["tree", "plain"]
Cache = list[Any]


class Verifier:
    """One target model. `mode` says whether trees can be verified; in plain mode a tree has one node.

    A cache holds the committed tokens; the pending token is never in it before its pass.
    """

    def __init__(self, model: Any, mode: Mode | None = None) -> None:
        self.model = model
        self.mode: Mode = mode or ("tree" if adoptable(make_prompt_cache(model)) else "plain")

    def new_cache(self) -> Cache:
        cache = make_prompt_cache(self.model)
        return adopt(cache) if self.mode == "tree" else cache

    def prefill(self, tokens: Sequence[int], cache: Cache) -> None:
        """Append `tokens` to the cache; their logits are not computed further than the model needs."""
        self.model(mx.array([list(tokens)]), cache=cache)
        mx.eval([layer.state for layer in cache])

    def forward(self, tree: TokenTree, cache: Cache) -> mx.array:
        """Logits of every node, [N, vocabulary], lazy. Follow with exactly one `commit` or `abandon`."""
        assert self.mode == "tree" or len(tree) == 1
        with tree_pass(tree):
            logits: mx.array = self.model(mx.array([tree.tokens]), cache=cache)[0]
        return logits

    def step(self, token: mx.array, cache: Cache) -> mx.array:
        """Logits after one more token, [1, vocabulary], lazy; `token` is [1] and may itself be lazy."""
        logits: mx.array = self.model(token[None], cache=cache)[0]
        return logits

    def commit(self, tree: TokenTree, path: Sequence[int], cache: Cache) -> None:
        """Keep exactly the nodes of `path` (from the root on) in the cache; costs the same at any context length."""
        assert path[0] == 0
        if len(tree) == 1:
            return
        for layer in cache:
            layer.commit(len(tree), path)

    def abandon(self, tree: TokenTree, cache: Cache) -> None:
        """Forget the pass: the cache is what it was before `forward`."""
        self.trim(cache, len(tree))

    def trim(self, cache: Cache, tokens: int) -> bool:
        """Drop the last `tokens` committed tokens; False when this kind of cache cannot."""
        if tokens and not all(layer.is_trimmable() for layer in cache):
            return False
        for layer in cache:
            layer.trim(tokens)
        return True
