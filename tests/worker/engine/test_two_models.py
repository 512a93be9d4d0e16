"""Two models of one family in one thread, one verified by trees and one by chains: hooks and adapters are of the passes
that they are for.
"""

import random

import mlx.core as mx
import numpy as np
import pytest

from bench.families import tiny_model, vocabulary
from worker.engine.tree import TokenTree
from worker.engine.verify.selfcheck import random_chain, random_tree
from worker.engine.verify.verifier import Cache, Verifier

PREFIX = [5, 17, 3, 88, 41, 41, 9, 23, 60, 2, 77]


class Text:
    """One text of a model: its passes, over one tree and then one token."""

    def __init__(self, verifier: Verifier, tree: TokenTree) -> None:
        self.verifier, self.tree = verifier, tree
        self.cache: Cache = verifier.new_cache()
        verifier.prefill(PREFIX, self.cache)

    def forward(self) -> mx.array:
        return self.verifier.forward(self.tree, self.cache)

    def commit(self) -> None:
        self.verifier.commit(self.tree, self.tree.path(len(self.tree) // 2), self.cache)

    def step(self) -> mx.array:
        return self.verifier.step(mx.array([4]), self.cache)


@pytest.mark.parametrize("family", ["llama4", "mistral4", "gpt2", "baichuan_m1", "qwen3_next", "falcon_h1", "rwkv7"])
def test_interleaved_passes_are_those_of_each_model_alone(family: str) -> None:
    rng, size = random.Random(3), vocabulary(family)
    trees, chains = Verifier(tiny_model(family), "tree"), Verifier(tiny_model(family, seed=5), "chain")
    tree, chain = random_tree(3, 12, 5, size, rng), random_chain(3, 12, size, rng)
    alone = []
    for verifier, draft in ((trees, tree), (chains, chain)):
        text = Text(verifier, draft)
        nodes = np.array(text.forward())
        text.commit()
        alone.append((nodes, np.array(text.step())))

    # Everything is lazy: nothing is computed before both models have run all of their passes.
    first, second = Text(trees, tree), Text(chains, chain)
    nodes_of_both = first.forward(), second.forward()
    second.commit()
    first.commit()
    steps_of_both = first.step(), second.step()
    for (nodes, step), got, following in zip(alone, nodes_of_both, steps_of_both, strict=True):
        np.testing.assert_array_equal(np.array(got), nodes)
        np.testing.assert_array_equal(np.array(following), step)
