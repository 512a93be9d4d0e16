"""The public functions, where they go without a GPU, and how a wrong variant is found out."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gated_delta_tree_cases import (
    Case,
    as_float64,
    expected_outputs,
    expected_state,
    path_to,
    random_parents,
)

from kernels.gated_delta_tree import Configuration, Rows, Tree, chosen, state_after, tree_outputs
from kernels.gated_delta_tree.cuda import cuda_recurrence
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.gated_delta_tree.probe import complaint
from kernels.gated_delta_tree.problem import StateAfter
from kernels.gated_delta_tree.reference import reference

FLOATS = (mx.float32,) * 5
# A millionth of the largest values, about 30: devices add in different orders.
OF_SUMS = 3e-5


@pytest.mark.parametrize("by_channel", [False, True], ids=["gate per head", "gate per channel"])
@pytest.mark.parametrize("raw", [False, True], ids=["made", "raw"])
@pytest.mark.parametrize("nodes", [1, 9, 40])
def test_the_public_functions_follow_the_recurrence(nodes: int, raw: bool, by_channel: bool) -> None:
    case = Case(random_parents(nodes, nodes), 64, 32, 2, 4, by_channel, raw=raw)
    arguments = case.arguments()
    path = path_to(case.parents, nodes - 1)
    rows, state = case.call()
    y = tree_outputs(rows, state, Tree(case.parents))
    np.testing.assert_allclose(as_float64(y), expected_outputs(arguments, case.parents, raw), rtol=0, atol=OF_SUMS)
    after = state_after(rows, state, mx.array(path, dtype=mx.int32))
    np.testing.assert_allclose(as_float64(after), expected_state(arguments, path, raw), rtol=0, atol=OF_SUMS)


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="states what a machine without a GPU says")
def test_without_a_gpu_the_reference_runs_and_the_reasons_are_kept() -> None:
    choice = chosen(Configuration(128, 128, False, FLOATS))
    assert choice.name == "reference"
    assert choice.refused == {
        "metal": "MLX does not compute on Metal here",
        "cuda": "MLX does not compute on CUDA here",
    }


def _first_columns(commit: StateAfter, rows: Rows, *others: mx.array) -> mx.array:
    after = commit(rows, *others)
    return mx.concatenate([after[:, :, :32], mx.zeros_like(after[:, :, 32:])], axis=2)


def test_the_probe_passes_the_reference_and_catches_a_wrong_operation() -> None:
    problem = Configuration(64, 128, True, (mx.bfloat16, mx.bfloat16, mx.float32, mx.bfloat16, mx.bfloat16))
    right = reference()
    assert complaint(right, problem) is None
    undecayed = right._replace(outputs=lambda rows, *rest: right.outputs(rows._replace(g=mx.ones_like(rows.g)), *rest))
    assert "outputs of a tree of 3 nodes" in (complaint(undecayed, problem) or "")
    half = right._replace(commit=lambda *arguments: _first_columns(right.commit, *arguments))
    assert "state of a tree of 3 nodes are off by" in (complaint(half, problem) or "")
    nothing = right._replace(commit=lambda rows, state, path: state * mx.nan)
    assert "state of a tree of 3 nodes are off by nan" in (complaint(nothing, problem) or "")
    idle = right._replace(advance=lambda *arguments: (right.advance(*arguments)[0], arguments[-1]))
    assert "state of a chain of 1 tokens are off by" in (complaint(idle, problem) or "")


def test_cuda_kernels_of_other_types_have_other_names() -> None:
    names: list[str] = []

    def factory(*, name: str, **_: object) -> object:
        names.append(name)
        return lambda **call: [mx.zeros(call["output_shapes"][0])]

    run = cuda_recurrence(factory)
    for rows in (mx.float16, mx.bfloat16, mx.float16):
        case = Case((-1, 0), 64, rows=rows)
        run.commit(*case.call(), mx.array([0], dtype=mx.int32))
    types = [f"{rows}_{rows}_float32_{rows}_{rows}_{rows}_float32_int32" for rows in ("float16", "bfloat16")]
    assert names == [f"gated_delta_tree_commit_{each}" for each in types]


def test_metal_kernels_of_short_and_long_inputs_have_other_names() -> None:
    """MLX puts those of fewer than 8 elements into other memory, and finds a compiled kernel by its name."""
    names: list[str] = []

    def factory(*, name: str, **_: object) -> object:
        names.append(name)
        return lambda **call: [mx.zeros(call["output_shapes"][0])]

    run = metal_recurrence(factory)
    rows, state = Case((-1, *range(8)), 64).call()
    for tokens in (7, 8, 7, 9):
        run.commit(rows, state, mx.arange(tokens, dtype=mx.int32))
    assert len(names) == len(set(names)) == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": mx.zeros((1, 4, 32, 64), dtype=mx.bfloat16)}, "state is mlx.core.bfloat16; float32 is needed"),
        ({"g": mx.zeros((1, 2, 2))}, "g is (1, 2, 2); with k (1, 2, 2, 64) and v (1, 2, 4, 32), (1, 2, 4) is needed"),
        ({"v": mx.zeros((1, 2, 3, 32))}, "v has 3 heads and k 2; a multiple is needed"),
        ({"q": mx.zeros((1, 2, 2, 64), dtype=mx.int32)}, "q is mlx.core.int32; bfloat16, float16 or float32 is needed"),
        (
            {"gate_parameters": (mx.zeros(4), mx.zeros(2))},
            "dt_bias is (2,); with k (1, 2, 2, 64) and v (1, 2, 4, 32), (4,) is needed",
        ),
        ({"tree": Tree([-1])}, "the tree has 1 nodes and k 2 rows"),
    ],
)
def test_what_does_not_belong_together_is_named(change: dict[str, object], complaint: str) -> None:
    rows, state = Case((-1, 0), 64, 32, 2, 4).call()
    given = {**rows._asdict(), "state": state, "tree": Tree([-1, 0]), **change}
    state, tree = given.pop("state"), given.pop("tree")
    with pytest.raises(ValueError) as error:
        tree_outputs(Rows(**given), state, tree)
    assert str(error.value) == complaint


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, -2]])
def test_a_tree_has_parents_first(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="an earlier node is needed"):
        Tree(parents)
