"""Trees and passes for the tests of recurrent layers, without a verifier."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import adopt
from worker.engine.verify.copies import copied_all
from worker.engine.verify.positions import install_rope_hook
from worker.engine.verify.recurrent import instrument_mixers
from worker.engine.verify.tree_pass import tree_pass

Rows = npt.NDArray[np.float32]


def deep_tree(nodes: int, max_depth: int, vocabulary: int, seed: int) -> TokenTree:
    """A random tree whose deepest path grows with every second node, up to `max_depth`."""
    rng = random.Random(seed)
    tree = TokenTree(rng.randrange(vocabulary))
    while len(tree) < nodes:
        deepest = tree.depths.index(tree.max_depth)
        parent = deepest if rng.random() < 0.5 else rng.randrange(len(tree))
        if tree.depths[parent] < max_depth:
            tree.add(parent, rng.randrange(vocabulary), 1.0)
    return tree


def chain_of(tokens: Sequence[int]) -> TokenTree:
    tree = TokenTree(tokens[0])
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, 1.0)
    return tree


def leaves(tree: TokenTree) -> list[int]:
    return [node for node in range(len(tree)) if not tree.children(node)]


def instrumented(model: Any) -> dict[str, str]:
    install_rope_hook()
    return dict(instrument_mixers(model, lambda: make_prompt_cache(model)))


def tree_cache(model: Any, prefix: Sequence[int]) -> list[Any]:
    """An adopted cache that holds `prefix`."""
    cache = adopt(make_prompt_cache(model))
    if prefix:
        mx.eval(model(mx.array([list(prefix)]), cache=cache))
    return cache


def pass_over(model: Any, tree: TokenTree, cache: Sequence[Any]) -> mx.array:
    """The logits of all nodes, [N, vocabulary], lazy."""
    with tree_pass(tree):
        logits: mx.array = model(mx.array([tree.tokens]), cache=cache)[0]
    return logits


def commit(cache: Sequence[Any], tree: TokenTree, path: Sequence[int]) -> None:
    for layer in cache:
        layer.commit(len(tree), path)


def abandon(cache: Sequence[Any], tree: TokenTree) -> None:
    for layer in cache:
        layer.abandon(len(tree))


def one_by_one(model: Any, tokens: Sequence[int], cache: Sequence[Any]) -> list[Rows]:
    """Logits of one-token decoding; the cache goes along."""
    return [np.array(model(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32)) for token in tokens]


def along_paths(model: Any, tree: TokenTree, cache: Sequence[Any]) -> Rows:
    """[N, vocabulary] logits of one-token decoding down the path of every node, from copies of `cache`."""
    rows: dict[int, Rows] = {}
    for leaf in leaves(tree):
        path = tree.path(leaf)
        logits = one_by_one(model, [tree.tokens[node] for node in path], copied_all(cache))
        rows.update(zip(path, logits, strict=True))
    return np.stack([rows[node] for node in range(len(tree))])


def relative_error(got: Any, expected: Any) -> float:
    """Largest |difference| over the largest |expected|."""
    return float(np.abs(np.array(got) - np.array(expected)).max() / np.abs(np.array(expected)).max())
