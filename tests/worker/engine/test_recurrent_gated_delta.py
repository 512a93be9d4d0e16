"""The gated delta rule on trees against mlx-lm's sequential rule down every path."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_ops, gated_delta_update, normalize_qk
from recurrent_passes import chain_of, deep_tree, leaves, relative_error

from worker.engine.tree import TokenTree
from worker.engine.verify.recurrent import gated_delta
from worker.engine.verify.recurrent.decay import decays, log_gates
from worker.engine.verify.recurrent.gated_delta import GATED_DELTA, gated_delta_tree
from worker.engine.verify.tree_pass import TreePass

KEY_HEADS, VALUE_HEADS, WIDTH = 2, 4, 64
PREFIX = 40
# Both sides are float32 and sum in another order: 1e-7 to 1e-6 of the largest output was seen.
TOLERANCE = 3e-6


class Case(NamedTuple):
    """Random inputs. likeness: 1 makes all keys equal. gates: the least; strength: the most."""

    likeness: float = 0.0
    gates: float = 0.9
    strength: float = 1.0
    by_channel: bool = False

    def inputs(self, tokens: int, common: mx.array) -> tuple[mx.array, ...]:
        shape = (1, tokens, KEY_HEADS, WIDTH)
        q, k = (self.likeness * common + (1 - self.likeness) * mx.random.normal(shape) for _ in "qk")
        q, k = normalize_qk(q, k, inv_scale=WIDTH**-0.5, eps=1e-6)
        v = mx.random.normal((1, tokens, VALUE_HEADS, WIDTH))
        channels = (WIDTH,) if self.by_channel else ()
        g = mx.random.uniform(self.gates, 1, (1, tokens, VALUE_HEADS, *channels))
        beta = mx.random.uniform(0, self.strength, (1, tokens, VALUE_HEADS))
        return q, k, v, g, beta

    def state_and_rows(self, nodes: int) -> tuple[mx.array, tuple[mx.array, ...]]:
        """The state after a prefix, and inputs for the nodes of a tree."""
        mx.random.seed(nodes)
        common = mx.random.normal((1, 1, KEY_HEADS, WIDTH))
        _, state = gated_delta_ops(*self.inputs(PREFIX, common))
        rows = self.inputs(nodes, common)
        mx.eval(state, rows)
        return state, rows


def down_every_path(tree: TokenTree, rows: tuple[mx.array, ...], state: mx.array | None) -> np.ndarray:
    """[N, Hv, Dv]: the outputs of mlx-lm's rule, one step per token of each path."""
    outputs = [np.zeros(0)] * len(tree)
    for leaf in leaves(tree):
        path = tree.path(leaf)
        y, _ = gated_delta_ops(*(row[:, mx.array(path)] for row in rows), state)
        for node, output in zip(path, np.array(y[0].astype(mx.float32)), strict=True):
            outputs[node] = output
    return np.stack(outputs)


TREES = {
    "bushy": deep_tree(32, 6, 1000, seed=1),
    "deep": deep_tree(32, 16, 1000, seed=2),
    "chain": chain_of(list(range(32))),
    "star": deep_tree(8, 1, 1000, seed=3),
}
CASES = {
    "usual": Case(),
    "gates down to 1e-6": Case(gates=1e-6),
    "alike keys": Case(likeness=0.9, gates=0.99),
    "equal keys without decay": Case(likeness=1.0, gates=1.0),
    "strength up to 2": Case(strength=2.0),
    "gates by channel": Case(by_channel=True),
    "small gates by channel": Case(by_channel=True, gates=1e-6),
    "alike keys by channel": Case(by_channel=True, likeness=0.9, gates=0.99, strength=2.0),
}


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("case", CASES)
def test_every_node_gets_the_output_of_its_own_path(case: str, shape: str) -> None:
    tree = TREES[shape]
    state, rows = CASES[case].state_and_rows(len(tree))
    y = gated_delta_tree(*rows, state, TreePass(tree))
    assert relative_error(y[0], down_every_path(tree, rows, state)) < TOLERANCE


@pytest.mark.parametrize("by_channel", [False, True])
def test_a_tree_at_the_start_of_a_text_has_no_state_above_it(by_channel: bool) -> None:
    tree = TREES["deep"]
    _, rows = Case(by_channel=by_channel).state_and_rows(len(tree))
    y = gated_delta_tree(*rows, None, TreePass(tree))
    assert relative_error(y[0], down_every_path(tree, rows, None)) < TOLERANCE


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_inputs_of_16_bits_are_rounded_no_further(dtype: mx.Dtype) -> None:
    tree = TREES["deep"]
    state, (q, k, v, g, beta) = Case().state_and_rows(len(tree))
    rows = (q.astype(dtype), k.astype(dtype), v.astype(dtype), g, beta.astype(dtype))
    y = gated_delta_tree(*rows, state, TreePass(tree))
    assert y.dtype == dtype
    # With a query of 32 bits the outputs are not rounded, and must agree as in float32.
    exact = (rows[0].astype(mx.float32), *rows[1:])
    y = gated_delta_tree(*exact, state, TreePass(tree))
    assert y.dtype == mx.float32
    assert relative_error(y[0], down_every_path(tree, exact, state)) < TOLERANCE


def test_gates_that_round_to_zero_cut_the_past_off() -> None:
    tree = chain_of([1, 2, 3, 4])
    state, (q, k, v, g, beta) = Case().state_and_rows(len(tree))
    g = mx.concatenate([g[:, :2], mx.zeros((1, 1, VALUE_HEADS)), g[:, 3:]], axis=1)
    y = gated_delta_tree(q, k, v, g, beta, state, TreePass(tree))
    assert relative_error(y[0], down_every_path(tree, (q, k, v, g, beta), state)) < TOLERANCE


def test_a_short_stretch_behind_tiny_gates_keeps_its_digits() -> None:
    tree = chain_of(list(range(16)))
    gates = np.array([1e-6] * 12 + [0.9, 0.8, 0.7, 0.6], dtype=np.float32)
    between, prefix = decays(log_gates(mx.array(gates[None])), TreePass(tree))
    expected = float(np.prod(gates[13:].astype(np.float64)))
    assert abs(between[0, 15, 12].item() / expected - 1) < 1e-6
    assert prefix[0, 11].item() == 0.0


@pytest.mark.parametrize("options", [{}, {"allow_neg_eigval": True}, {"lower_bound": -5.0}])
def test_a_call_of_the_update_has_the_same_gates_and_strengths_on_a_tree(options: dict[str, float]) -> None:
    tree = TREES["deep"]
    state, (q, k, v, _, _) = Case().state_and_rows(len(tree))
    a, b = mx.random.normal((1, 32, VALUE_HEADS)), mx.random.normal((1, 32, VALUE_HEADS))
    constants = (mx.random.normal((VALUE_HEADS,)), mx.random.normal((VALUE_HEADS,)))
    arguments = GATED_DELTA.arguments((q, k, v, a, b, *constants, state), options)
    y = GATED_DELTA.tree(arguments, TreePass(tree))
    for leaf in leaves(tree):
        path = tree.path(leaf)
        rows = (row[:, mx.array(path)] for row in (q, k, v, a, b))
        expected, _ = gated_delta_update(*rows, *constants, state, **options)
        assert relative_error(y[0, mx.array(path)], expected[0]) < TOLERANCE


def test_the_state_after_a_path_has_the_bits_of_the_rule_itself() -> None:
    tree = TREES["deep"]
    state, (q, k, v, _, _) = Case().state_and_rows(len(tree))
    a, b = mx.random.normal((1, 32, VALUE_HEADS)), mx.random.normal((1, 32, VALUE_HEADS))
    constants = (mx.random.normal((VALUE_HEADS,)), mx.random.normal((VALUE_HEADS,)))
    path = tree.path(31)
    after = GATED_DELTA.state_after(GATED_DELTA.arguments((q, k, v, a, b, *constants, state), {}), path)
    for node in path:
        _, state = gated_delta_update(*(row[:, node : node + 1] for row in (q, k, v, a, b)), *constants, state)
    assert mx.array_equal(after, state)


def test_a_chain_is_left_to_a_kernel_for_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_delta, "has_sequence_kernel", lambda: True)
    tree = chain_of(list(range(6)))
    state, (q, k, v, _, _) = Case().state_and_rows(len(tree))
    a, b = mx.random.normal((1, 6, VALUE_HEADS)), mx.random.normal((1, 6, VALUE_HEADS))
    call = (q, k, v, a, b, mx.random.normal((VALUE_HEADS,)), mx.random.normal((VALUE_HEADS,)), state)
    y = GATED_DELTA.tree(GATED_DELTA.arguments(call, {}), TreePass(tree))
    assert mx.array_equal(y, gated_delta_update(*call)[0])
