"""Speculative output is a sample of the target: whole texts of three tokens have the target's own distribution.

The target is a table; each pass verifies one of several random trees, whose guesses know nothing of the draws.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from chi_square import p_value
from keyed_noise import noise_table
from scripted_model import ScriptedModel

from worker.engine.acceptance import walk
from worker.engine.draws import Draws
from worker.engine.sampling import History, Sampling
from worker.engine.tree import TokenTree
from worker.engine.verify.verifier import Verifier

VOCABULARY, LENGTH, TEXTS, TREES = 3, 3, 8000, 12
PROMPT = [2, 0]
TEXTS_OF_THREE = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
# Logits after two tokens.
TABLE = np.random.default_rng(5).normal(0, 0.8, (VOCABULARY, VOCABULARY, VOCABULARY)).astype(np.float32)
LATER = 8
"""No draw of a text is that many positions after another."""
NOISE = noise_table(TEXTS, 2 * LATER, VOCABULARY)
Draw = Callable[[Draws, TokenTree, int, History], int]


@pytest.fixture(autouse=True)
def noise_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_table(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return NOISE[seed, position, tokens]

    monkeypatch.setattr("worker.engine.sampling.gumbel_noise", from_table)


def logits_of(prefix: Sequence[int]) -> list[float]:
    before, last = ([0, *prefix])[-2:]
    return TABLE[before, last].tolist()  # type: ignore[no-any-return]


def random_tree(pending: int, shape: int) -> TokenTree:
    """Up to twelve nodes, to depth two; siblings and chains."""
    rng = random.Random(shape)
    tree = TokenTree(pending)
    for _ in range(shape):
        parent = rng.choice([node for node in range(len(tree)) if tree.depths[node] < LENGTH - 1])
        tree.add(parent, rng.randrange(VOCABULARY), 0.5)
    return tree


@cache
def verified(prefix: tuple[int, ...], shape: int) -> tuple[TokenTree, mx.array]:
    """A random tree after `prefix`, and the logits of its nodes by one pass over it."""
    verifier = Verifier(ScriptedModel(logits_of), mode="tree")
    cache = verifier.new_cache()
    verifier.prefill(prefix[:-1], cache)
    tree = random_tree(prefix[-1], shape)
    logits = verifier.forward(tree, cache)
    mx.eval(logits)
    return tree, logits


def text_of(seed: int, sampling: Sampling, draw: Draw) -> tuple[int, ...]:
    completion: list[int] = []
    while len(completion) < LENGTH:
        tree, logits = verified((*PROMPT, *completion), (seed + 5 * len(completion)) % TREES)
        draws = Draws(sampling, logits)
        accepted = walk(
            tree,
            lambda node, emitted: draw(draws, tree, node, History(PROMPT, completion, emitted)),  # noqa: B023
            lambda _: False,
        )
        completion = completion + accepted.tokens
    return tuple(completion[:LENGTH])


def counts_of(values: dict[str, float], draw: Draw) -> list[int]:
    """How often each text of three tokens was generated, one generation for each seed."""
    counts = dict.fromkeys(TEXTS_OF_THREE, 0)
    for seed in range(TEXTS):
        counts[text_of(seed, Sampling(**values, seed=seed), draw)] += 1  # type: ignore[arg-type]
    return list(counts.values())


def exact_distribution(temperature: float, top_p: float = 1.0) -> list[float]:
    """Of every text of three tokens, in float64 from the table."""

    def chance(before: int, last: int, token: int) -> float:
        weights = np.exp(TABLE[before, last].astype(np.float64))
        shares = weights / weights.sum()
        kept = [shares[shares > share].sum() < top_p for share in shares]
        flattened = np.where(kept, shares ** (1 / temperature), 0.0)
        return float(flattened[token] / flattened.sum())

    texts = [(*PROMPT, *text) for text in TEXTS_OF_THREE]
    return [math.prod(chance(*text[place : place + 3]) for place in range(LENGTH)) for text in texts]


def as_the_engine_draws(draws: Draws, tree: TokenTree, node: int, history: History) -> int:
    return draws.draw(node, history)


def with_one_position_for_a_pass(draws: Draws, tree: TokenTree, node: int, history: History) -> int:
    return draws.draw(node, History(history.prompt, history.completion))


def again_unless_drafted(draws: Draws, tree: TokenTree, node: int, history: History) -> int:
    """A second draw, of later noise, where the first is no child: guesses then come up too often."""
    token = draws.draw(node, history)
    if tree.children(node) and tree.child(node, token) is None:
        return draws.draw(node, History(history.prompt, history.completion, [*history.emitted, *[0] * LATER]))
    return token


@pytest.mark.parametrize("values", [{"temperature": 0.9}, {"temperature": 1.4, "top_p": 0.8}], ids=str)
def test_texts_have_the_distribution_of_the_target(values: dict[str, float]) -> None:
    exact = np.array(exact_distribution(**values))
    assert exact.sum() == pytest.approx(1)
    counts = np.array(counts_of(values, as_the_engine_draws))
    assert counts[exact == 0].sum() == 0
    assert p_value(counts[exact > 0], exact[exact > 0]) > 1e-3


@pytest.mark.parametrize("wrong", [with_one_position_for_a_pass, again_unless_drafted])
def test_draws_that_depend_on_the_tree_would_show(wrong: Draw) -> None:
    assert p_value(counts_of({"temperature": 0.9}, wrong), exact_distribution(0.9)) < 1e-9
