"""Verifier: the target model's passes over prompt chunks and draft trees, and the cache they leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import adopt, adoptable
from worker.engine.verify.copies import mapped
from worker.engine.verify.recurrent import plain_pass
from worker.engine.verify.restoring import RestoringPass
from worker.engine.verify.submission import MOST_BLOCKS, divide, pieces_of_prefill, submitting
from worker.engine.verify.support import limits_of, support_of
from worker.engine.verify.taps import Taps
from worker.engine.verify.tree_pass import tree_pass

Mode = Literal["tree", "chain", "plain"]
Cache = list[Any]


class Verifier:
    """One target model.

    mode: "tree" verifies any tree in one pass; "chain" verifies chains, and restores and replays caches of any class;
    in "plain" mode a tree has one node. reuses_prefixes: see `Verdict`. A cache holds the committed tokens; the pending
    token is never in it before its pass. taps: the hidden states that a drafter reads of every pass. kernels: see
    `KernelSet`. most_blocks: of a piece in which a pass in "tree" mode is handed to the device, see `submission`.
    """

    def __init__(
        self,
        model: Any,
        mode: Mode = "tree",
        reuses_prefixes: bool = True,
        kernels: KernelSet = STOCK,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.mode: Mode = mode
        self._reuses_prefixes = reuses_prefixes
        self.taps: Taps | None = None
        self._support = support_of(model) if mode == "tree" else limits_of(model)
        self._restoring: RestoringPass | None = None
        self._ends = divide(model, most_blocks) if mode == "tree" else []

    @staticmethod
    def has_tree_form(model: Any) -> bool:
        """Whether all caches of `model` have a tree form; the self-check says whether it is right."""
        return adoptable(make_prompt_cache(model))

    def shape_after(self, offset: int, nodes: int) -> Mode:
        """Of which shape a pass over `nodes` nodes may be after `offset` tokens: some models are limited in range."""
        shapes = [self.mode, *(limit(offset, nodes) for limit in self._support.limits)]
        return max(shapes, key=("tree", "chain", "plain").index)

    @property
    def reusable(self) -> int | None:
        """Leading positions whose rows do not depend on how the prompt was prefilled; None = all."""
        return self._support.reusable if self._reuses_prefixes else 0

    def new_cache(self) -> Cache:
        """Empty layers. A pass that nobody ended is forgotten, and with it what it keeps of the cache before it."""
        self._restoring = None
        cache = make_prompt_cache(self.model)
        return adopt(cache) if self.mode == "tree" else list(cache)

    def prefill(self, tokens: Sequence[int], cache: Cache) -> None:
        """Append `tokens` to the cache; their logits are not computed further than the model needs."""
        with submitting(pieces_of_prefill(self._ends, len(cache))):
            self._run(mx.array([list(tokens)]), cache)
        evaluate(cache)

    def forward(self, tree: TokenTree, cache: Cache) -> mx.array:
        """Logits of every node, [N, vocabulary], lazy. Follow with exactly one `commit` or `abandon`.

        In "tree" mode the device works on the first blocks already while this runs, see `submission`.
        """
        tokens = mx.array([tree.tokens])
        if len(tree) == 1:
            return self._run_plain(tokens, cache)
        if self.mode == "tree":
            with tree_pass(tree, self.kernels), submitting(len(self._ends)):
                return self._run(tokens, cache)
        assert self.mode == "chain"
        assert tree.is_chain
        self._restoring = RestoringPass(cache)
        return self._run(tokens, cache)

    def step(self, token: mx.array, cache: Cache) -> mx.array:
        """Logits after one more token, [1, vocabulary], lazy; `token` is [1] and may itself be lazy."""
        return self._run_plain(token[None], cache)

    @property
    def hidden(self) -> mx.array | None:
        """What `taps` recorded of the latest pass or prefill, [N, width]; None without taps."""
        return self.taps.hidden if self.taps else None

    def _run_plain(self, token: mx.array, cache: Cache) -> mx.array:
        """The pass of plain decoding."""
        with plain_pass(self.kernels if self._support.mixers else STOCK), submitting(len(self._ends)):
            return self._run(token, cache)

    def _run(self, tokens: mx.array, cache: Cache) -> mx.array:
        logits: mx.array
        if self.taps is None:
            logits = self.model(tokens, cache=cache)[0]
        else:
            with self.taps.recording():
                logits = self.model(tokens, cache=cache)[0]
        return logits

    def commit(self, tree: TokenTree, path: Sequence[int], cache: Cache) -> None:
        """Keep exactly the nodes of `path` (from the root on) in the cache; costs the same at any context length."""
        assert path[0] == 0
        if len(tree) == 1:
            return
        if self.mode == "tree":
            for layer in cache:
                layer.commit(len(tree), path)
        else:
            assert self._restoring is not None
            self._restoring.commit(tree, path, lambda tokens: self.model(tokens, cache=cache))
            self._restoring = None

    def abandon(self, tree: TokenTree, cache: Cache) -> None:
        """Forget the pass over a tree of several nodes: the cache is what it was before `forward`."""
        assert len(tree) > 1
        if self.mode == "tree":
            for layer in cache:
                layer.abandon(len(tree))
        else:
            assert self._restoring is not None
            self._restoring.abandon(len(tree))
            self._restoring = None


def evaluate(cache: Cache) -> None:
    """Compute all that the cache holds, so that no graph behind it stays alive."""
    arrays: list[mx.array] = []
    mapped(list(cache), arrays.append)
    mx.eval(arrays)
