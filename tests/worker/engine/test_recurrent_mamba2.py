"""Mamba 2 on trees against mlx-lm's state space layer, one token at a time down every path."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.ssm import ssm_attn, ssm_update
from recurrent_passes import chain_of, deep_tree, leaves, relative_error

from worker.engine.tree import TokenTree
from worker.engine.verify.recurrent.mamba2 import MAMBA2
from worker.engine.verify.tree_pass import TreePass

HEADS, GROUPS, WIDTH, STATE = 8, 2, 32, 64
PREFIX = 40
TOLERANCE = 3e-6
TREES = {
    "bushy": deep_tree(32, 6, 1000, seed=1),
    "deep": deep_tree(32, 16, 1000, seed=2),
    "chain": chain_of(list(range(32))),
}


class Layer(NamedTuple):
    """The parameters of a layer: decay, skip and step size of each head."""

    A_log: mx.array
    D: mx.array
    dt_bias: mx.array


class Rows(NamedTuple):
    x: mx.array
    B: mx.array
    C: mx.array
    dt: mx.array

    def of(self, path: list[int]) -> "Rows":
        return Rows(*(rows[:, mx.array(path)] for rows in self))


def random_rows(tokens: int) -> Rows:
    x = mx.random.normal((1, tokens, HEADS, WIDTH))
    B, C = (mx.random.normal((1, tokens, GROUPS, STATE)) for _ in "BC")
    return Rows(x, B, C, mx.random.normal((1, tokens, HEADS)))


def run(layer: Layer, rows: Rows, state: mx.array | None, **limits: tuple[float, float]) -> tuple[mx.array, mx.array]:
    return ssm_attn(rows.x, layer.A_log, rows.B, rows.C, layer.D, rows.dt, layer.dt_bias, state, **limits)


@pytest.fixture
def layer() -> Layer:
    mx.random.seed(0)
    A_log = mx.log(mx.random.uniform(1, 16, (HEADS,)))
    return Layer(A_log, mx.random.normal((HEADS,)), 0.5 * mx.random.normal((HEADS,)))


def tree_outputs(tree: TokenTree, layer: Layer, rows: Rows, state: mx.array | None, **limits: object) -> mx.array:
    call = (rows.x, layer.A_log, rows.B, rows.C, layer.D, rows.dt, layer.dt_bias, state)
    return MAMBA2.tree(MAMBA2.arguments(call, limits), TreePass(tree))


def down_every_path(tree: TokenTree, layer: Layer, rows: Rows, state: mx.array | None, **limits: object) -> np.ndarray:
    """[N, H, Dh] outputs of one-token steps."""
    outputs = [np.zeros(0)] * len(tree)
    for leaf in leaves(tree):
        reached = state
        for node in tree.path(leaf):
            y, reached = run(layer, rows.of([node]), reached, **limits)
            outputs[node] = np.array(y[0, 0])
    return np.stack(outputs)


@pytest.mark.parametrize("limits", [{}, {"time_step_limit": (0.0, float("inf"))}, {"time_step_limit": (0.3, 0.6)}])
@pytest.mark.parametrize("shape", TREES)
def test_every_node_gets_the_output_of_its_own_path(layer: Layer, shape: str, limits: dict[str, object]) -> None:
    tree = TREES[shape]
    _, state = run(layer, random_rows(PREFIX), None)
    rows = random_rows(len(tree))
    y = tree_outputs(tree, layer, rows, state, **limits)
    assert relative_error(y[0], down_every_path(tree, layer, rows, state, **limits)) < TOLERANCE


def test_a_tree_at_the_start_of_a_text_has_no_state_above_it(layer: Layer) -> None:
    tree = TREES["deep"]
    rows = random_rows(len(tree))
    y = tree_outputs(tree, layer, rows, None)
    assert relative_error(y[0], down_every_path(tree, layer, rows, None)) < TOLERANCE


def test_outputs_have_the_type_of_the_inputs_and_are_rounded_once(layer: Layer) -> None:
    tree = TREES["deep"]
    _, state = run(layer, random_rows(PREFIX), None)
    rows = Rows(*(part.astype(mx.bfloat16) for part in random_rows(len(tree))))
    layer = layer._replace(D=mx.zeros((HEADS,), dtype=mx.bfloat16))
    y = tree_outputs(tree, layer, rows, state)
    assert y.dtype == mx.bfloat16
    wide = Rows(*(part.astype(mx.float32) for part in rows))
    expected = down_every_path(tree, layer, wide, state)
    error = np.abs(np.array(y[0].astype(mx.float32)) - expected)
    assert (error <= 2**-8 * np.abs(expected) + TOLERANCE * np.abs(expected).max()).all()


def test_the_state_after_a_path_has_the_bits_of_the_layer_itself(layer: Layer) -> None:
    tree = TREES["deep"]
    _, state = run(layer, random_rows(PREFIX), None)
    rows = random_rows(len(tree))
    call = (rows.x, layer.A_log, rows.B, rows.C, layer.D, rows.dt, layer.dt_bias, state)
    path = tree.path(31)
    after = MAMBA2.state_after(MAMBA2.arguments(call, {}), path)
    accepted = rows.of(path)
    _, expected = ssm_update(accepted.x, layer.A_log, accepted.B, accepted.C, layer.D, accepted.dt, *call[6:])
    assert mx.array_equal(after, expected)
