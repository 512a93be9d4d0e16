"""Drafts of a block drafter beside what the reference expects of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from dflash_reference import Reference
from drafter_rig import DrafterCase, Rig
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.drafters.dflash import DFlashSettings, load_dflash
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.philox import gumbel_noise
from worker.engine.sampling import Sampling
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps

# The three best of every slot after every one of the slot before: 1 + 3 + 9 + 27 + 81.
WIDE = DraftLimits(nodes=121, depth=20)
ALL = DFlashSettings(children=3, min_value=1e-20)
Odds = Callable[[np.ndarray, list[int], int], np.ndarray]
"""odds(scores, tokens, depth): of tokens that stand at a depth, given their log-odds."""


def reference(config: dict[str, Any], tensors: dict[str, np.ndarray], target: Any, **options: Any) -> Reference:
    inner = getattr(target, "language_model", target)
    embedding = np.array(inner.model.embed_tokens.weight).astype(np.float64)
    head = np.array(inner.lm_head.weight).astype(np.float64) if "lm_head" in inner else embedding
    return Reference(config, tensors, embedding, head, **options)


def hidden_states(target: Any, config: dict[str, Any], tokens: list[int]) -> np.ndarray:
    """What the tapped blocks put out for `tokens`, from one pass of its own."""
    taps = Taps(target, blocks=config["dflash_config"]["target_layer_ids"])
    with taps.recording():
        mx.eval(target(mx.array([tokens]), cache=make_prompt_cache(target)))
    assert taps.hidden is not None
    return np.array(taps.hidden).astype(np.float64)


def drafted(
    target: Any, directory: Path, settings: DFlashSettings, tokens: list[int], sampling: Sampling | None = None
) -> TokenTree:
    rig = Rig(DrafterCase(target, lambda: load_dflash(directory, target, settings), 97), sampling)
    rig.prompt(tokens, chunk=7)
    return rig.draft(WIDE)


def softmax(scores: np.ndarray) -> np.ndarray:
    odds = np.exp(scores - scores.max())
    return odds / odds.sum()


def greedy(scores: np.ndarray, tokens: list[int], depth: int) -> np.ndarray:
    return softmax(scores)


def sampled(temperature: float, seed: int, position: int) -> Odds:
    """With the noise of the position, which the draw itself will have; `position` is the root's."""

    def odds(scores: np.ndarray, tokens: list[int], depth: int) -> np.ndarray:
        return softmax(scores / temperature + gumbel_noise(seed, position + depth, np.array(tokens)))

    return odds


def check_independent(tree: TokenTree, logits: np.ndarray, odds: Odds = greedy) -> None:
    """Every node has the odds of its slot, and the best of every slot are there."""
    assert tree.max_depth == len(logits)
    slots = [odds(row, list(range(len(row))), depth) for depth, row in enumerate(logits, start=1)]
    for node in range(1, len(tree)):
        expected = slots[tree.depths[node] - 1][tree.tokens[node]]
        assert tree.confidences[node] == pytest.approx(expected, rel=2e-3, abs=1e-6)
    node: int | None = 0
    for slot in slots:
        assert node is not None
        node = tree.child(node, int(np.argmax(slot)))
    assert node is not None


def check_lattice(tree: TokenTree, lattice: list[dict[tuple[int, int], float]], odds: Odds = greedy) -> None:
    """Every node has the odds of its token after its parent's, among the candidates of its slot."""
    assert tree.max_depth == len(lattice)
    for node in range(1, len(tree)):
        before, depth = tree.tokens[tree.parents[node]], tree.depths[node]
        row = {token: score for (first, token), score in lattice[depth - 1].items() if first == before}
        expected = dict(zip(row, odds(np.array(list(row.values())), list(row), depth), strict=True))
        assert tree.confidences[node] == pytest.approx(expected[tree.tokens[node]], rel=2e-3, abs=1e-6)
    # More than one row of a slot was looked at.
    assert len({tree.tokens[tree.parents[node]] for node in range(1, len(tree)) if tree.depths[node] == 3}) > 1
