"""What is told of the kernels on this machine."""

from collections.abc import Callable

import mlx.core as mx
import pytest

from kernels import gated_delta_tree, qmm, sample, tree_attention
from kernels.probing import Choice
from worker.kernel_check import REFERENCE, Problem, check_kernels, known_problems


def doubled(x: mx.array) -> mx.array:
    return x * 2


def counting(calls: list[int]) -> Callable[[mx.array], mx.array]:
    def run(x: mx.array) -> mx.array:
        calls.append(x.size)
        return doubled(x)

    return run


def problem(choice: Choice[Callable[[mx.array], mx.array]], reference: Callable[[mx.array], mx.array]) -> Problem:
    return Problem("double", "three numbers", lambda: choice, lambda: (mx.ones(3),), reference)


def test_a_kernel_that_runs_is_timed_beside_the_stock_path() -> None:
    own, stock = list[int](), list[int]()
    choice = Choice("metal", counting(own), {"tensor": "needs an M5"})
    (check,) = check_kernels([problem(choice, counting(stock))])
    assert (check.kernel, check.configuration, check.variant) == ("double", "three numbers", "metal")
    assert check.refused == {"tensor": "needs an M5"}
    assert check.milliseconds is not None
    assert check.milliseconds > 0
    assert check.stock_milliseconds is not None
    assert check.stock_milliseconds > 0
    # One run that compiles, and five that count.
    assert own == stock == [3] * 6


def test_a_kernel_that_fails_at_a_larger_size_is_told_and_the_others_still_come() -> None:
    def failing(x: mx.array) -> mx.array:
        raise RuntimeError("no\npipeline")

    first = problem(Choice("metal", failing, {}), doubled)
    second = problem(Choice("metal", doubled, {}), doubled)
    checks = list(check_kernels([first, second]))
    assert [check.variant for check in checks] == [REFERENCE, "metal"]
    assert checks[0].refused == {"metal": "passed its check, and then failed at a larger size: no pipeline"}


def test_a_draw_is_timed_until_its_arrays_are_there() -> None:
    draw = next(known for known in known_problems() if known.kernel == "sample")
    logits, draws, top = draw.arguments()
    drawn = draw.reference(logits[:, :50], draws, top)
    assert all(isinstance(array, mx.array) for array in drawn)
    assert drawn[0].shape == (len(draws),)


def test_where_the_reference_runs_there_is_nothing_to_time() -> None:
    calls = list[int]()
    (check,) = check_kernels([problem(Choice(REFERENCE, counting(calls), {}), doubled)])
    assert (check.variant, check.milliseconds, check.stock_milliseconds) == (REFERENCE, None, None)
    assert calls == []


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="on a GPU its own kernels are chosen")
def test_without_a_gpu_every_kernel_is_its_reference_and_says_why() -> None:
    checks = list(check_kernels())
    assert {check.kernel for check in checks} == {"qmm", "tree_attention", "gated_delta_tree", "sample"}
    assert len(checks) == 6 + 5 + 2 + 3
    assert all(check.variant == REFERENCE and check.refused for check in checks)


@pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal: a text that Apple's compiler refuses shows here")
def test_on_a_mac_every_metal_kernel_compiles_and_passes_its_check() -> None:
    for check in check_kernels():
        assert check.variant in ("tensor", "simdgroup", "metal"), check
        assert all(name == "tensor" and "has no tensor units" in why for name, why in check.refused.items()), check


def test_the_problems_have_the_arguments_that_their_kernels_take() -> None:
    """As the public functions check them, at sizes that they have kernels for."""
    for known in known_problems():
        arguments = known.arguments()
        if known.kernel == "qmm":
            x, w, scales, biases, group_size, bits = arguments
            assert x.shape[0] <= qmm.MOST_ROWS
            qmm._check(x, w, scales, biases, group_size, bits)
        elif known.kernel == "tree_attention":
            queries, keys, values, ancestors = arguments
            tree_attention.check(queries, keys, values, ancestors, None, 0, None)
            assert tree_attention.has_kernel(queries, keys, values)
        elif known.kernel == "gated_delta_tree":
            q, k, v, g, beta, state, tree = arguments
            gated_delta_tree.check_rows(k, v, g, beta, state, q)
            assert len(tree) == k.shape[1]
        else:
            sample.check_arguments(*arguments)
