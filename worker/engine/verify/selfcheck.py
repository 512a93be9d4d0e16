"""The self-check at load: a random tree against one-token decoding, on the real model.

It decides how a model is verified. A family that nobody tried is then slow at worst, never wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import RotatingKVCache

from worker.engine.tree import TokenTree
from worker.engine.verify.caches import flat
from worker.engine.verify.copies import copied_all
from worker.engine.verify.verifier import Cache, Mode, Verifier

PREFIX_TOKENS = 12
NODES = 12
MAX_DEPTH = 6
FOLLOWING = 2
# A window is crossed too when filling it costs no more than this many tokens of prefill.
MAX_WINDOW = 4096
PREFILL_CHUNK = 512
# Largest difference of two logits, over the largest logit. Wrong positions or masks gave 0.25 and more; a right tree
# was bit-identical for SmolLM2-135M in 32, 16 and 4 bit (x86-64 CPU, November 2026). The tolerances leave room for GPU
# kernels that round differently for one row and for several; in 16 bit that room is a guess.
TOLERANCE = {mx.float32: 2e-3}
TOLERANCE_16_BIT = 0.12

Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Verdict:
    """How a model is verified, and why not better: mode -> what was wrong with it."""

    mode: Mode
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "; ".join(f"{mode} verification {reason}" for mode, reason in self.refused.items())


class _Uncheckable(Exception):
    """Why a way of verification cannot be compared with one-token decoding."""


def random_tree(pending: int, nodes: int, max_depth: int, vocabulary: int, rng: random.Random) -> TokenTree:
    """A tree of `nodes` nodes with random tokens and parents."""
    tree = TokenTree(pending)
    while len(tree) < nodes:
        parent = rng.choice([n for n in range(len(tree)) if tree.depths[n] < max_depth])
        tree.add(parent, rng.randrange(vocabulary), 1.0)
    return tree


def random_chain(pending: int, nodes: int, vocabulary: int, rng: random.Random) -> TokenTree:
    """A chain of `nodes` nodes with random tokens."""
    tree = TokenTree(pending)
    for node in range(nodes - 1):
        tree.add(node, rng.randrange(vocabulary), 1.0)
    return tree


def decide_mode(model: Any, vocabulary: int, dtype: mx.Dtype) -> Verdict:
    """The best mode that agrees with one-token decoding on this model; one that it breaks does not."""
    refused: dict[str, str] = {}
    if not Verifier.has_tree_form(model):
        refused["tree"] = "has no form for a cache of this model"
    for mode in ("tree", "chain"):
        if mode not in refused:
            wrong = _objection(lambda mode=mode: Verifier(model, mode), vocabulary, dtype)  # type: ignore[misc]
            if wrong is None:
                return Verdict(mode, refused)
            refused[mode] = wrong
    return Verdict("plain", refused)


def largest_error(verifier: Verifier, vocabulary: int, seed: int = 0) -> float:
    """The error after a short prefix, and past each sliding window that is cheap to fill."""
    cache = verifier.new_cache()
    windows = {layer.max_size for layer in flat(cache) if isinstance(layer, RotatingKVCache)}
    prefixes = [PREFIX_TOKENS, *(window + PREFIX_TOKENS for window in sorted(windows) if window <= MAX_WINDOW)]
    return max(tree_error(verifier, vocabulary, prefix, seed) for prefix in prefixes)


def tree_error(verifier: Verifier, vocabulary: int, prefix: int = PREFIX_TOKENS, seed: int = 0) -> float:
    """Largest |logit of a pass - one-token logit|, over the largest |logit|.

    Compared are all nodes of a random tree (or chain) after `prefix` tokens, and the tokens that follow once a random
    path of it is committed.
    """
    rng = random.Random(seed)
    cache = verifier.new_cache()
    _prefill(verifier, [rng.randrange(vocabulary) for _ in range(prefix)], cache)
    tree = _tree(verifier.shape_after(prefix, NODES), vocabulary, rng)
    node = rng.randrange(1, len(tree) - 1)
    path = tree.path(node)
    following = [rng.randrange(vocabulary) for _ in range(FOLLOWING)]

    alone = _along_paths(verifier, tree, copied_all(cache))
    committed = [tree.tokens[one] for one in path]
    alone += _one_by_one(verifier, [*committed, *following], copied_all(cache))[len(committed) :]
    together = list(_numpy(verifier.forward(tree, cache)))
    verifier.commit(tree, path, cache)
    together += _one_by_one(verifier, following, cache)
    return _difference(np.stack(together), np.stack(alone))


def _objection(make: Callable[[], Verifier], vocabulary: int, dtype: mx.Dtype) -> str | None:
    """What speaks against a way of verification; None when it is right."""
    tolerance = TOLERANCE.get(dtype, TOLERANCE_16_BIT)
    try:
        error = largest_error(make(), vocabulary)
    except _Uncheckable as reason:
        return str(reason)
    except Exception as broken:  # noqa: BLE001 - whatever it is, the model is not to be verified so
        return f"fails: {type(broken).__name__}: {broken}"
    if np.isfinite(error) and error <= tolerance:
        return None
    return f"differs from one-token decoding by {error:.2g} of the largest logit"


def _difference(got: Row, expected: Row) -> float:
    """Largest |got - expected| over the largest finite |expected|; models may ban tokens with minus infinity."""
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]):
        return math.inf
    return float(np.abs(got[finite] - expected[finite]).max() / np.abs(expected[finite]).max())


def _tree(shape: Mode, vocabulary: int, rng: random.Random) -> TokenTree:
    if shape == "plain":
        raise _Uncheckable("is not exact after so few tokens")
    pending = rng.randrange(vocabulary)
    if shape == "chain":
        return random_chain(pending, NODES, vocabulary, rng)
    return random_tree(pending, NODES, MAX_DEPTH, vocabulary, rng)


def _along_paths(verifier: Verifier, tree: TokenTree, cache: Cache) -> list[Row]:
    """One-token logits of every node."""
    rows: dict[int, Row] = {}
    stack = [(0, cache)]
    while stack:
        node, before = stack.pop()
        rows[node] = _one_by_one(verifier, [tree.tokens[node]], before)[0]
        children = tree.children(node)
        stack += [(child, copied_all(before) if child != children[-1] else before) for child in children]
    return [rows[node] for node in range(len(tree))]


def _one_by_one(verifier: Verifier, tokens: Sequence[int], cache: Cache) -> list[Row]:
    return [_numpy(verifier.step(mx.array([token]), cache))[0] for token in tokens]


def _prefill(verifier: Verifier, tokens: Sequence[int], cache: Cache) -> None:
    for start in range(0, len(tokens), PREFILL_CHUNK):
        verifier.prefill(tokens[start : start + PREFILL_CHUNK], cache)


def _numpy(logits: mx.array) -> Row:
    return np.array(logits.astype(mx.float32))
