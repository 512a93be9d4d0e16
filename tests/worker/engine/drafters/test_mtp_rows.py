"""The rows that an MTP head's attention sees: every node of a tree at the position of its depth, on its own path."""

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from mtp_checkpoints import head_for, raw_tensors
from mtp_reference import numbers, reference

from bench.families import configuration
from worker.engine.drafters.mtp.rows import CommittedRows, DraftedRows
from worker.engine.tree import TokenTree

COMMITTED = 5
# A root, two guesses after it, and after the second of them three more.
PARENTS = [0, 0, 2, 2, 2]
LEVELS = [[0], [1, 2], [3, 4, 5]]
PAIRS = COMMITTED + len(PARENTS) + 1


def tree() -> TokenTree:
    grown = TokenTree(0)
    for token, parent in enumerate(PARENTS, start=1):
        grown.add(parent, token, 0.5)
    return grown


def test_rows_of_a_tree_follow_the_committed_ones_along_their_paths() -> None:
    mx.random.seed(3)
    embedded, hidden = mx.random.normal((PAIRS, 64)), mx.random.normal((PAIRS, 64))
    head, layer = head_for("qwen3_5"), KVCache()
    # Row 0 belongs to the first token, which has no pair: whatever is in it.
    pairs = mx.array([7, *range(COMMITTED)])
    head(embedded[pairs], hidden[pairs], "causal", CommittedRows(layer))
    drafted, got = DraftedRows(layer), []
    for level in LEVELS:
        mask = drafted.begin_level(tree(), level)
        chosen = mx.array([COMMITTED + node for node in level])
        got.append(numbers(head(embedded[chosen], hidden[chosen], mask, drafted)))
    seen = np.tri(PAIRS, dtype=np.bool_)
    seen[COMMITTED:, COMMITTED:] = tree().ancestors()
    positions = np.array([*range(COMMITTED), *(COMMITTED + depth for depth in tree().depths)])
    config = configuration("qwen3_5")["text_config"]
    expected = reference(raw_tensors("qwen3_5"), config, numbers(embedded), numbers(hidden), positions, seen)
    np.testing.assert_allclose(np.concatenate(got), expected[COMMITTED:], atol=1e-3)
    assert layer.offset == PAIRS + 1
