"""The self-check at load: a random tree against one-token decoding, on the real model.

A family that nobody tried is then slow at worst, never wrong.
"""

import random

import mlx.core as mx
import numpy as np

from worker.engine.tree import TokenTree
from worker.engine.verify.verifier import Cache, Verifier

PREFIX_TOKENS = 12
NODES = 12
MAX_DEPTH = 6
# Largest difference of two logits, over the largest logit. Wrong positions or masks gave 0.25 and more; a right tree
# was bit-identical for SmolLM2-135M in 32, 16 and 4 bit (x86-64 CPU, November 2026). The tolerances leave room for GPU
# kernels that round differently for one row and for several; in 16 bit that room is a guess.
TOLERANCE = {mx.float32: 2e-3}
TOLERANCE_16_BIT = 0.12


def random_tree(pending: int, nodes: int, max_depth: int, vocabulary: int, rng: random.Random) -> TokenTree:
    """A tree of `nodes` nodes with random tokens and parents."""
    tree = TokenTree(pending)
    while len(tree) < nodes:
        parent = rng.choice([n for n in range(len(tree)) if tree.depths[n] < max_depth])
        tree.add(parent, rng.randrange(vocabulary), 1.0)
    return tree


def tree_error(verifier: Verifier, vocabulary: int, seed: int = 0) -> float:
    """Largest |tree logit - one-token logit| over all nodes, over the largest |logit|."""
    rng = random.Random(seed)
    prefix = [rng.randrange(vocabulary) for _ in range(PREFIX_TOKENS)]
    tree = random_tree(rng.randrange(vocabulary), NODES, MAX_DEPTH, vocabulary, rng)
    cache = verifier.new_cache()
    verifier.prefill(prefix, cache)
    together = _numpy(verifier.forward(tree, cache))
    verifier.abandon(tree, cache)
    alone = np.stack([row for _, row in sorted(_one_by_one(verifier, tree, 0, cache))])
    return float(np.abs(together - alone).max() / np.abs(alone).max())


def passes_selfcheck(verifier: Verifier, vocabulary: int, dtype: mx.Dtype) -> bool:
    """Whether tree verification agrees with one-token decoding on this model; one that it breaks does not."""
    try:
        error = tree_error(verifier, vocabulary)
    except Exception:  # noqa: BLE001
        return False
    return bool(np.isfinite(error)) and error <= TOLERANCE.get(dtype, TOLERANCE_16_BIT)


def _one_by_one(
    verifier: Verifier, tree: TokenTree, node: int, cache: Cache
) -> list[tuple[int, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]]:
    logits = verifier.step(mx.array([tree.tokens[node]]), cache)
    rows = [(node, _numpy(logits)[0])]
    for child in tree.children(node):
        rows += _one_by_one(verifier, tree, child, cache)
    verifier.trim(cache, 1)
    return rows


def _numpy(logits: mx.array) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.array(logits.astype(mx.float32))
