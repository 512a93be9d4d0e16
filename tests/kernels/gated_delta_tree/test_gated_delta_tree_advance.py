"""`advance.metal`, its CUDA twin and the reference over chains, against the float64 recurrence."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gated_delta_tree_cases import Case, as_float64, expected_outputs, expected_state
from gated_delta_tree_metal_words import in_metal_words

from kernels.gated_delta_tree import Tree, reference
from kernels.gated_delta_tree.cuda import cuda_recurrence
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.gated_delta_tree.problem import Recurrence
from kernels.host import RunOptions, metal_kernel, running

# Half a step of the type, as a share of the value, and a millionth of the largest values for sums in any order.
OF_SUMS = 3e-5
ROUNDING = {mx.float32: 0.0, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


def chain(tokens: int) -> tuple[int, ...]:
    return tuple(range(-1, tokens - 1))


CASES = {
    "one token": Case(chain(1), 128, 64, 1, 2, rows=mx.bfloat16),
    "one token, odd heads": Case(chain(1), 64, 32, 3, 3),
    "one token, a gate per channel": Case(chain(1), 256, 32, by_channel=True, rows=mx.float16),
    "two tokens": Case(chain(2), 64, 96, 2, 4, rows=mx.float16),
    "three tokens, a gate per channel": Case(chain(3), 128, 32, 1, 3, by_channel=True),
    "four tokens": Case(chain(4), 256, 64, 2, 2, rows=mx.bfloat16),
    "more tokens than it is meant for": Case(chain(20), 64, 32),
    "as a model has it": Case(chain(3), 128, 32, 2, 4, rows=mx.bfloat16, raw=True),
    "as a model has it, in float32": Case(chain(4), 64, 64, 1, 3, raw=True, apart=True),
    "unnormed, a gate per channel": Case(chain(2), 256, 32, by_channel=True, rows=mx.float16, raw=True),
}


def run(recurrence: Recurrence, case: Case) -> tuple[mx.array, mx.array]:
    return recurrence.advance(*case.call())


def assert_right(case: Case, y: mx.array, after: mx.array) -> None:
    arguments = case.arguments()
    assert (y.shape, y.dtype) == ((1, len(case.parents), case.heads, case.value_width), case.rows)
    expected = expected_outputs(arguments, case.parents, case.raw)
    np.testing.assert_allclose(as_float64(y), expected, rtol=ROUNDING[case.rows], atol=OF_SUMS)
    expected = expected_state(arguments, range(len(case.parents)), case.raw)
    np.testing.assert_allclose(as_float64(after), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "options",
    [
        RunOptions(),
        RunOptions(order="reverse", byte_offsets={"q": 2, "k": 6, "v": 10, "g": 4, "beta": 2, "state": 4}),
        RunOptions(order="seeded", layout_seed=2),
    ],
    ids=["forward", "reverse and shifted", "seeded"],
)
def test_the_state_is_read_and_written_once_in_one_launch(name: str, options: RunOptions) -> None:
    case = CASES[name]
    if case.rows == mx.float32:
        options = RunOptions(order=options.order, layout_seed=options.layout_seed)  # 2 bytes are no place for a float
    with running(options) as reports:
        assert_right(case, *run(metal_recurrence(metal_kernel), case))
    (report,) = reports
    size = 4 * case.heads * case.value_width * case.key_width
    assert (report.traffic["state"].most_reads, report.traffic["state"].bytes_read) == (1, size)
    assert (report.traffic["after"].most_writes, report.traffic["after"].bytes_written) == (1, size)
    assert report.traffic["y"].most_writes == 1
    assert (report.barriers, report.threadgroup_bytes) == (0, 0)


@pytest.mark.parametrize("name", CASES)
def test_the_cuda_text_follows_the_recurrence_too(name: str) -> None:
    with running(RunOptions(static_checks=False)) as reports:
        assert_right(CASES[name], *run(cuda_recurrence(in_metal_words), CASES[name]))
    assert [report.traffic["state"].most_reads for report in reports] == [1]


@pytest.mark.parametrize("name", CASES)
def test_the_reference_is_the_recurrence(name: str) -> None:
    assert_right(CASES[name], *run(reference(), CASES[name]))


def test_it_agrees_with_outputs_and_commit() -> None:
    """To a few units of float32: they add in other orders."""
    case = CASES["three tokens, a gate per channel"]
    rows, state = case.call()
    kernels = metal_recurrence(metal_kernel)
    with running(RunOptions(metered=False)):
        y, after = kernels.advance(rows, state)
        path = mx.arange(3, dtype=mx.int32)
        others = kernels.outputs(rows, state, Tree(case.parents)), kernels.commit(rows, state, path)
    for mine, other in zip((y, after), others, strict=True):
        np.testing.assert_allclose(np.array(mine), np.array(other), rtol=0, atol=5e-6)
