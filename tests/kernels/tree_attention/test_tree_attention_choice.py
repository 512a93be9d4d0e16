"""The function itself: what it refuses, which variant it runs, and how a variant that is wrong is found out."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tree_attention_cases import Case, assert_close

from kernels.host import RunOptions, metal_kernel, running
from kernels.tree_attention import HEAD_SIZES, chosen, tree_attention
from kernels.tree_attention.choice import complaint
from kernels.tree_attention.metal import metal
from kernels.tree_attention.reference import reference, visible
from worker.engine.tree import TokenTree
from worker.engine.verify.tree_pass import tree_pass

MASKED = [
    Case(2, 1, 9, 40, 72, sinks=True),
    Case(3, 1, 32, 10, 64, window=8),
    Case(1, 1, 12, 30, 128, window=16, keep=4),
    Case(1, 1, 12, 2, 64, window=9, keep=4),
]


@pytest.mark.parametrize("case", MASKED, ids=str)
def test_the_reference_is_attention_under_the_mask(case: Case) -> None:
    assert np.array_equal(np.array(visible(case.ancestors, case.columns, case.window, case.keep)), case.visible)
    assert_close(case.run(reference), case)
    assert_close(case.run(tree_attention), case)


@pytest.mark.parametrize(
    ("committed", "rows", "window", "keep"),
    [(40, None, None, 0), (40, None, 9, 0), (40, 15, 16, 0), (40, 23, 24, 4), (3, None, 24, 4), (20, None, 24, 4)],
)
def test_the_mask_is_the_one_of_a_pass_over_that_cache(
    committed: int, rows: int | None, window: int | None, keep: int
) -> None:
    case = Case(1, 1, 17, committed if rows is None else rows, 64)
    tree = TokenTree(0)
    for node in range(1, case.nodes):
        tree.add(case.parents[node], node, 1.0)
    with tree_pass(tree) as current:
        expected = current.mask(committed, rows, window, keep)
    assert mx.array_equal(visible(case.ancestors, case.columns, window, keep), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": mx.zeros((2, 4, 5, 64))}, r"queries are \(2, 4, 5, 64\); expected \[1,"),
        ({"queries": mx.zeros((1, 4, 33, 64))}, "33 nodes; ancestor bits hold 1 to 32"),
        ({"queries": mx.zeros((1, 3, 5, 64))}, "3 query heads cannot share 2 key heads"),
        ({"queries": mx.zeros((1, 4, 5, 80))}, "keys have head size 64, queries 80"),
        ({"values": mx.zeros((1, 2, 44, 64))}, "need the same heads and columns"),
        ({"keys": mx.zeros((1, 2, 4, 64)), "values": mx.zeros((1, 2, 4, 64))}, "4 columns; the tree alone has 5"),
        ({"ancestors": mx.zeros((5,), dtype=mx.int32)}, "expected uint32"),
        ({"ancestors": mx.zeros((4,), dtype=mx.uint32)}, r"expected uint32 \(5,\)"),
        ({"window": 4, "keep": 4}, "window 4 with keep 4"),
        ({"sinks": mx.zeros((2,))}, "one for each of the 4 query heads"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    case = Case(4, 2, 5, 40, 64)
    queries, keys, values = case.arrays
    call = {"queries": queries, "keys": keys, "values": values, "ancestors": case.ancestors, "scale": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        tree_attention(**call)


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="a GPU has variants of its own")
def test_without_a_gpu_the_reference_runs_and_says_why() -> None:
    choice = chosen(mx.bfloat16, 128)
    assert choice.name == "reference"
    assert choice.run is reference
    assert choice.refused == {
        "metal": "MLX does not compute on Metal here",
        "cuda": "MLX does not compute on CUDA here",
    }


@pytest.mark.parametrize(("dtype", "size"), [(mx.bfloat16, 64), (mx.float16, 256)])
def test_the_metal_variant_passes_the_check(dtype: mx.Dtype, size: int) -> None:
    with running(RunOptions(metered=False, static_checks=False)):
        assert complaint(metal(metal_kernel), dtype, size) is None


def _forgetting(**forgotten: Any) -> Any:
    return lambda *arrays, **options: reference(*arrays, **{**options, **forgotten})


def _with_ancestors(ancestors: list[int]) -> Any:
    bits = mx.array(ancestors, dtype=mx.uint32)
    return lambda queries, keys, values, _, **options: reference(queries, keys, values, bits, **options)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("size", HEAD_SIZES)
@pytest.mark.parametrize(
    "wrong",
    [
        _forgetting(window=None),
        _forgetting(keep=0),
        _forgetting(sinks=None),
        _forgetting(scale=0.5),
        _with_ancestors([1, 3, 5, 11, 23]),
        lambda queries, keys, values, *rest, **options: reference(
            queries, keys[:, ::-1], values[:, ::-1], *rest, **options
        ),
    ],
    ids=["window", "keep", "sinks", "scale", "ancestors", "key heads"],
)
def test_a_variant_that_forgets_something_does_not_pass(wrong: Any, size: int, dtype: mx.Dtype) -> None:
    assert "differs from the reference by" in str(complaint(wrong, dtype, size))
    assert complaint(reference, dtype, size) is None
