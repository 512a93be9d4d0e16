"""The self-check at load: a random tree against one-token decoding, on the real model.

It decides how a model is verified. A family that nobody tried is then slow at worst, never wrong. One-token decoding is
that of MLX's own operations, so that a kernel that is wrong everywhere does not agree with itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import RotatingKVCache

from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.linears import Installed
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
# Errors over the largest logit. Float32 rounding stays below 1e-5 by the largest row; wrong masks or positions gave
# 0.25 and more. In 16 bit, tiny random models of seven families on an H200 (November 2026) gave 0.003 to 0.06 by the
# typical row, chains of mlx-lm's own 0.004 to 0.2 (experts), and without a mask 3 to 40 times the chain's.
SURE = {mx.float32: 2e-3}
SURE_16_BIT = 0.01
TOLERANCE_16_BIT = 0.12
NOISE_FACTOR = 2.5
# Part of what a stored verdict belongs to: raise it when verification changes.
VERSION = 3

Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Verdict:
    """How a model is verified, and what was wrong with a mode: mode -> reason."""

    mode: Mode
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def reuses_prefixes(self) -> bool:
        """Whether what a cache holds does not depend on how its tokens were split into passes."""
        return "chain" not in self.refused

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


def decide_mode(
    model: Any, vocabulary: int, dtype: mx.Dtype, kernels: KernelSet = STOCK, products: Installed | None = None
) -> Verdict:
    """The best mode that agrees with one-token decoding on this model; one that it breaks does not.

    kernels, products: that its passes are going to use.
    """
    # mlx-lm's own pass over a chain shows how much of a difference is rounding, and whether what a cache holds is the
    # same however a prompt was split.
    chain = _trial(lambda: Verifier(model, "chain", kernels=kernels), products, vocabulary, dtype)
    tree: _Trial | str = "has no form for a cache of this model"
    if Verifier.has_tree_form(model):
        tree = _trial(lambda: Verifier(model, "tree", kernels=kernels), products, vocabulary, dtype)
    refused = {
        "tree": tree if isinstance(tree, str) else tree.objection(_tolerance(dtype, chain)),
        "chain": chain if isinstance(chain, str) else chain.objection(_tolerance(dtype)),
    }
    mode: Mode = next((mode for mode in ("tree", "chain") if refused[mode] is None), "plain")
    return Verdict(mode, {name: reason for name, reason in refused.items() if reason is not None})


@dataclass(frozen=True)
class Comparison:
    """Largest |logit of a pass - one-token logit| of each row, over the largest |logit| of all rows.

    nodes: rows of the pass. following: rows of the tokens after a path of it was committed.
    """

    nodes: list[float]
    following: list[float]

    @property
    def largest(self) -> float:
        return max(self.nodes + self.following)

    @property
    def typical(self) -> float:
        """The larger of both medians: a wrong mask, position or commit shows in most rows.

        In 16 bit single rows may be far off and right: rounding routes a token to another expert.
        """
        return max(median(self.nodes), median(self.following))


def compare(
    verifier: Verifier,
    vocabulary: int,
    prefix: int = PREFIX_TOKENS,
    seed: int = 0,
    products: Installed | None = None,
) -> Comparison:
    """A pass over a random tree (or chain) after `prefix` random tokens, and what follows a commit, against one-token
    decoding.

    products: that are installed in the model. The prefix and one-token decoding use none of them, and no kernels.
    """
    rng = random.Random(seed)
    cache = verifier.new_cache()
    with _without_kernels(verifier, products):
        _prefill(verifier, [rng.randrange(vocabulary) for _ in range(prefix)], cache)
    tree = _tree(verifier.shape_after(prefix, NODES), vocabulary, rng)
    node = rng.randrange(1, len(tree) - 1)
    path = tree.path(node)
    following = [rng.randrange(vocabulary) for _ in range(FOLLOWING)]

    committed = [tree.tokens[one] for one in path]
    with _without_kernels(verifier, products):
        alone = _along_paths(verifier, tree, copied_all(cache))
        alone += _one_by_one(verifier, [*committed, *following], copied_all(cache))[len(committed) :]
    together = list(_numpy(verifier.forward(tree, cache)))
    verifier.commit(tree, path, cache)
    together += _one_by_one(verifier, following, cache)
    differences = _row_differences(np.stack(together), np.stack(alone))
    return Comparison(differences[: len(tree)], differences[len(tree) :])


@contextmanager
def _without_kernels(verifier: Verifier, products: Installed | None) -> Iterator[None]:
    """Compute with MLX's own operations for a while."""
    kernels, verifier.kernels = verifier.kernels, STOCK
    try:
        with products.suspended() if products else nullcontext():
            yield
    finally:
        verifier.kernels = kernels


@dataclass(frozen=True)
class _Trial:
    """Errors of one way of verification with three different trees."""

    errors: list[float]

    def objection(self, tolerance: float) -> str | None:
        """What speaks against it.

        One agreement is enough. A disagreement may be a tie that rounding decides, such as between two experts, so
        it is overruled when both other trees agree.
        """
        agrees = [error <= tolerance for error in self.errors]
        if agrees[0] or all(agrees[1:]):
            return None
        return f"differs from one-token decoding by {median(self.errors):.2g} of the largest logit"


def _trial(make: Callable[[], Verifier], products: Installed | None, vocabulary: int, dtype: mx.Dtype) -> _Trial | str:
    """Try a way of verification; why it cannot be tried. Trees past the first are tried when that one disagrees."""
    try:
        errors = [_error(make(), products, vocabulary, dtype, seed=0)]
        if not errors[0] <= SURE.get(dtype, SURE_16_BIT):  # not a number is no agreement
            errors += [_error(make(), products, vocabulary, dtype, seed) for seed in (1, 2)]
    except _Uncheckable as reason:
        return str(reason)
    except Exception as broken:  # noqa: BLE001 - whatever it is, the model is not to be verified so
        return f"fails: {type(broken).__name__}: {broken}"
    return _Trial([error if math.isfinite(error) else math.inf for error in errors])


def _tolerance(dtype: mx.Dtype, chain: _Trial | str | None = None) -> float:
    """The largest error that is rounding; `chain` are mlx-lm's own passes over several tokens of the same model."""
    if dtype == mx.float32:
        return SURE[dtype]
    if not isinstance(chain, _Trial):
        return TOLERANCE_16_BIT
    return min(TOLERANCE_16_BIT, max(SURE_16_BIT, NOISE_FACTOR * median(chain.errors)))


def _error(verifier: Verifier, products: Installed | None, vocabulary: int, dtype: mx.Dtype, seed: int) -> float:
    """The error after a short prefix, and past each sliding window that is cheap to fill."""
    windows = {layer.max_size for layer in flat(verifier.new_cache()) if isinstance(layer, RotatingKVCache)}
    prefixes = [PREFIX_TOKENS, *(window + PREFIX_TOKENS for window in sorted(windows) if window <= MAX_WINDOW)]
    comparisons = [compare(verifier, vocabulary, prefix, seed, products) for prefix in prefixes]
    return max(one.largest if dtype == mx.float32 else one.typical for one in comparisons)


def _row_differences(got: Row, expected: Row) -> list[float]:
    """Per row; infinite where a token that the model bans with minus infinity is not banned in both."""
    finite = np.isfinite(expected)
    differences = np.where(finite, np.abs(np.where(finite, got, 0) - np.where(finite, expected, 0)), 0)
    differences = np.where(~finite & (got != expected), np.inf, differences)
    return [float(row) for row in differences.max(axis=-1) / np.abs(expected[finite]).max()]


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
