"""Tree passes of models with the rope hook, tree caches and adapters alone, and what their logits have to equal."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import adopt
from worker.engine.verify.positions import install_rope_hook
from worker.engine.verify.tree_pass import tree_pass

Logits = npt.NDArray[np.float32]

TOKENS = 97
# Largest difference of two logits, over the largest logit. Float32 rounding stays below the first; a wrong position or
# mask is above the second.
TOLERANCE = 2e-5
WRONG = 1e-2

# Two branches that part at the root and again below, 5 deep, and a last node that hangs from the root again; and an
# accepted path whose nodes are not neighbours.
PARENTS = (-1, 0, 1, 2, 2, 0, 5, 6, 6, 8, 9, 0)
ACCEPTED = (0, 5, 6, 8, 9)


def prompt(tokens: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(TOKENS) for _ in range(tokens)]


def tree_of(parents: Sequence[int] = PARENTS, seed: int = 1) -> TokenTree:
    """A tree of that shape with random tokens, no two of which are equal."""
    tokens = random.Random(seed).sample(range(TOKENS), len(parents))
    tree = TokenTree(tokens[0])
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        tree.add(parent, token, 1.0)
    assert tree.parents == list(parents)
    return tree


def chain_of(nodes: int) -> TokenTree:
    return tree_of(range(-1, nodes - 1))


def tree_cache(model: Any, prefix: Sequence[int]) -> list[Any]:
    """A tree cache that holds `prefix`."""
    install_rope_hook()
    cache = adopt(make_prompt_cache(model))
    model(mx.array([list(prefix)]), cache=cache)
    return cache


def tree_logits(model: Any, cache: list[Any], tree: TokenTree) -> Logits:
    """[N, vocabulary] of one pass over the tree."""
    with tree_pass(tree):
        return np.array(model(mx.array([tree.tokens]), cache=cache)[0])


def commit(cache: list[Any], tree: TokenTree, path: Sequence[int]) -> None:
    for layer in cache:
        layer.commit(len(tree), path)


def path_logits(model: Any, prefix: Sequence[int], tree: TokenTree, decoded: Sequence[int] = ()) -> Logits:
    """The same, of one-token decoding along every path with mlx-lm's own caches, after `prefix` and `decoded`."""
    cache = make_prompt_cache(model)
    model(mx.array([list(prefix)]), cache=cache)
    for token in decoded:
        model(mx.array([[token]]), cache=cache)
    rows: dict[int, Logits] = {}
    _decode(model, cache, tree, 0, rows)
    return np.stack([rows[node] for node in range(len(tree))])


def _decode(model: Any, cache: list[Any], tree: TokenTree, node: int, rows: dict[int, Logits]) -> None:
    rows[node] = np.array(model(mx.array([[tree.tokens[node]]]), cache=cache)[0, 0])
    for child in tree.children(node):
        _decode(model, copy.deepcopy(cache), tree, child, rows)


def error(got: Logits, expected: Logits) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def pass_error(model: Any, prefix: Sequence[int], tree: TokenTree) -> float:
    """How far the pass over `tree` after `prefix` is from one-token decoding."""
    return error(tree_logits(model, tree_cache(model, prefix), tree), path_logits(model, prefix, tree))


def error_after_commit(model: Any, prefix: Sequence[int], first: TokenTree, path: Sequence[int]) -> float:
    """How far a second pass is from one-token decoding, after `path` of a first one was kept."""
    cache = tree_cache(model, prefix)
    tree_logits(model, cache, first)
    commit(cache, first, path)
    second = tree_of(seed=2)
    decoded = [first.tokens[node] for node in path]
    return error(tree_logits(model, cache, second), path_logits(model, prefix, second, decoded))
