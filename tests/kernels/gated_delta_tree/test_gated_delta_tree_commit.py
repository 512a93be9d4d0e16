"""`commit.metal` under emulation, against the float64 recurrence."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gated_delta_tree_cases import Case, as_float64, expected_state, path_to, random_parents

from kernels.gated_delta_tree.metal import metal_recurrence
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
