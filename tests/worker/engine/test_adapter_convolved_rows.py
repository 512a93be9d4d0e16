"""baichuan_m1: each row of keys and values is convolved with the row of its parent."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from adapted_passes import (
    ACCEPTED,
    TOLERANCE,
    WRONG,
    chain_of,
    error,
    error_after_commit,
    pass_error,
    path_logits,
    prompt,
    tree_cache,
    tree_logits,
    tree_of,
)
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from bench.families import tiny_model
from worker.engine.verify.adapters import apply_adapters
from worker.engine.verify.caches import adopt
from worker.engine.verify.positions import install_rope_hook


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model("baichuan_m1")
    assert apply_adapters(model).names == ("convolved keys and values",)
    return model


def test_every_node_gets_the_logits_of_its_own_path(model: Any) -> None:
    assert pass_error(model, prompt(11), tree_of()) < TOLERANCE
    assert pass_error(model, prompt(11), chain_of(6)) < TOLERANCE


def test_without_the_adapter_the_logits_are_wrong() -> None:
    assert pass_error(tiny_model("baichuan_m1"), prompt(11), tree_of()) > WRONG


@pytest.mark.parametrize(("tree", "path"), [(tree_of(), ACCEPTED), (tree_of(), (0,)), (chain_of(6), (0, 1, 2))])
def test_the_state_is_the_row_of_the_last_accepted_node(model: Any, tree: Any, path: tuple[int, ...]) -> None:
    assert error_after_commit(model, prompt(11), tree, path) < TOLERANCE


def test_the_first_pass_of_all_has_no_row_before_it(model: Any) -> None:
    install_rope_hook()
    cache, reference = adopt(make_prompt_cache(model)), make_prompt_cache(model)
    tree = chain_of(5)
    assert (
        error(tree_logits(model, cache, tree), np.array(model(mx.array([tree.tokens]), cache=reference)[0])) < TOLERANCE
    )


def test_an_abandoned_pass_leaves_no_trace(model: Any) -> None:
    cache, tree = tree_cache(model, prompt(11)), tree_of()
    tree_logits(model, cache, tree)
    for layer in cache:
        layer.abandon(len(tree))
    assert error(tree_logits(model, cache, tree), path_logits(model, prompt(11), tree)) < TOLERANCE


def test_a_pass_adds_nothing_to_the_model_s_parameters(model: Any) -> None:
    before = [name for name, _ in tree_flatten(model.parameters())]
    tree_logits(model, tree_cache(model, prompt(11)), tree_of())
    assert [name for name, _ in tree_flatten(model.parameters())] == before
