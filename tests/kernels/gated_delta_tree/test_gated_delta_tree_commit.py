"""`commit.metal` under emulation, against the float64 recurrence."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gated_delta_tree_cases import Case, as_float64, expected_state, path_to, random_parents
from gated_delta_tree_metal_words import in_metal_words

from kernels.gated_delta_tree import Rows
from kernels.gated_delta_tree.cuda import cuda_recurrence
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.gated_delta_tree.problem import Recurrence
from kernels.host import RunOptions, metal_kernel, running

CHAIN = tuple(range(-1, 31))
TREE = random_parents(20, 5)

CASES = {
    "root alone": (Case(TREE, 64, 32, 3, 3), [0]),
    "a path": (Case(TREE, 128, 64, 1, 2, rows=mx.bfloat16), path_to(TREE, 19)),
    "32 tokens, a gate per channel": (Case(CHAIN, 64, 32, 1, 2, by_channel=True), list(range(32))),
    "as a model has it": (Case(TREE, 128, 64, 2, 4, rows=mx.bfloat16, raw=True), path_to(TREE, 19)),
    "as a model has it, in float32": (Case(TREE, 64, 32, 1, 2, raw=True, apart=True), path_to(TREE, 18)),
    "unnormed, a gate per channel": (Case(TREE, 128, 32, by_channel=True, raw=True), path_to(TREE, 19)),
    "widest keys, a gate per channel": (Case(TREE, 256, 32, by_channel=True, rows=mx.float16), path_to(TREE, 16)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "options", [RunOptions(), RunOptions(order="seeded", layout_seed=2)], ids=["forward", "seeded"]
)
def test_state_follows_the_path_and_is_read_and_written_once(name: str, options: RunOptions) -> None:
    case, path = CASES[name]
    arguments = case.arguments()
    with running(options) as reports:
        after = metal_recurrence(metal_kernel).commit(*case.call(), mx.array(path, dtype=mx.int32))
    np.testing.assert_allclose(as_float64(after), expected_state(arguments, path, case.raw), rtol=0, atol=5e-6)
    traffic = reports[0].traffic
    size = 4 * case.heads * case.value_width * case.key_width
    assert (traffic["state"].most_reads, traffic["state"].bytes_read) == (1, size)
    assert (traffic["after"].most_writes, traffic["after"].bytes_written) == (1, size)
    assert (reports[0].barriers, reports[0].threadgroup_bytes) == (0, 0)


@pytest.mark.parametrize(
    "recurrence", [metal_recurrence(metal_kernel), cuda_recurrence(in_metal_words)], ids=["Metal", "CUDA"]
)
def test_gates_near_one_keep_their_distance_from_it(recurrence: Recurrence) -> None:
    """A head that forgets a little with each token has forgotten after thousands of them."""
    exponents = np.array([-30, -17, -15.5, -12, -7, -3, -2.3, -2, -0.5, 0, 1, 40], np.float32)
    rates = np.array([-3, 0, 2.7, 5], np.float32)
    heads = exponents.size * rates.size
    a, log_rate = np.tile(exponents, rates.size), np.repeat(rates, exponents.size)
    zeros = mx.zeros((1, 1, 1, 64))
    values = mx.zeros((1, 1, heads, 32))
    parameters = mx.array(log_rate), mx.zeros(heads)
    rows = Rows(zeros, zeros, values, mx.array(a)[None, None], mx.zeros((1, 1, heads)), parameters, normed=False)
    with running(RunOptions(static_checks=False, metered=False)):
        after = recurrence.commit(rows, mx.ones((1, heads, 32, 64)), mx.zeros(1, mx.int32))
    expected = np.exp(-np.exp(log_rate.astype(np.float64)) * np.log1p(np.exp(a.astype(np.float64))))
    np.testing.assert_allclose(as_float64(after)[0, :, 0, 0], expected, rtol=2e-6, atol=1.2e-7)


def test_a_path_may_be_every_second_element_of_an_array() -> None:
    case, path = CASES["a path"]
    strided = mx.array([node for one in path for node in (one, 0)], dtype=mx.int32)[::2]
    with running(RunOptions(metered=False)):
        after = metal_recurrence(metal_kernel).commit(*case.call(), strided)
    np.testing.assert_allclose(as_float64(after), expected_state(case.arguments(), path), rtol=0, atol=5e-6)
