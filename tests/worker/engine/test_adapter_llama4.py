"""llama4: layers that see their own chunk only, and a query temperature that counts slots."""

from typing import Any

import numpy as np
import pytest
from adapted_passes import (
    ACCEPTED,
    TOLERANCE,
    WRONG,
    chain_of,
    commit,
    error,
    error_after_commit,
    pass_error,
    path_logits,
    prompt,
    tree_cache,
    tree_logits,
    tree_of,
)

from bench.families import configuration, tiny_model
from worker.engine.verify.adapters import apply_adapters
from worker.engine.verify.adapters.chunked_mask import chunked_mask
from worker.engine.verify.tree_pass import TreePass

CHUNK = configuration("llama4")["text_config"]["attention_chunk_size"]


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model("llama4")
    assert apply_adapters(model).names == ("chunked mask",)
    return model


# The tree begins at the start, in the middle and at the last position of a chunk, and crosses into the next.
@pytest.mark.parametrize("prefix", [2 * CHUNK, 3 * CHUNK - 3, 3 * CHUNK - 1, 5])
def test_every_node_gets_the_logits_of_its_own_path(model: Any, prefix: int) -> None:
    assert pass_error(model, prompt(prefix), tree_of()) < TOLERANCE
    assert pass_error(model, prompt(prefix), chain_of(10)) < TOLERANCE


def test_without_the_adapter_the_logits_are_wrong() -> None:
    assert pass_error(tiny_model("llama4"), prompt(3 * CHUNK - 3), tree_of()) > WRONG


@pytest.mark.parametrize("path", [ACCEPTED, (0,), (0, 1, 2, 4)])
def test_decoding_goes_on_from_the_accepted_path(model: Any, path: tuple[int, ...]) -> None:
    assert error_after_commit(model, prompt(3 * CHUNK - 3), tree_of(), path) < TOLERANCE


def test_many_passes_cross_many_chunks(model: Any) -> None:
    prefix, decoded = prompt(5), []
    cache = tree_cache(model, prefix)
    for seed in range(8):
        tree = tree_of(seed=seed)
        logits = tree_logits(model, cache, tree)
        assert error(logits, path_logits(model, prefix, tree, decoded)) < TOLERANCE, seed
        commit(cache, tree, ACCEPTED)
        decoded += [tree.tokens[node] for node in ACCEPTED]
    assert cache[0].start_position > 3 * CHUNK


def test_a_node_sees_the_rows_and_ancestors_of_its_own_chunk() -> None:
    # Positions 6 and 7 of the cache, then nodes at 8, 9, 9 and 10; chunks of 3 are 6..8 and 9..11.
    mask = chunked_mask(TreePass(tree_of((-1, 0, 0, 1))), start=6, offset=8, chunk=3)
    assert np.array(mask).astype(int).tolist() == [
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 1, 0, 1],
    ]


def test_a_pass_that_crosses_a_step_of_the_temperature_has_to_be_a_chain() -> None:
    # The temperature of the token in slot s comes from (s + 1) // 8: slots 0..6, 7..14, 15..22 share one.
    model = tiny_model("llama4", floor_scale=8, attn_scale=2.0)
    (limit,) = apply_adapters(model).limits
    assert [limit(0, 7), limit(0, 8), limit(7, 8), limit(7, 9), limit(14, 1), limit(14, 2)] == [
        "tree", "chain", "tree", "chain", "tree", "chain",
    ]  # fmt: skip
    small = tree_of((-1, 0, 0, 1, 1, 2))
    assert limit(8, 6) == "tree"
    assert pass_error(model, prompt(8), small) < TOLERANCE
    assert limit(3, 6) == "chain"
    assert pass_error(model, prompt(3), small) > WRONG
    assert pass_error(model, prompt(3), chain_of(6)) < TOLERANCE


def test_without_temperature_there_is_no_limit() -> None:
    assert apply_adapters(tiny_model("llama4", attn_temperature_tuning=0)).limits == ()
