"""Siblings share one product, and are right in any order and alone."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from product_kernels import CountedProducts

from worker.engine.linears import install_kernels


class Parent(nn.Module):
    """a, b and c are given the same x; between changes it."""

    def __init__(self, changed_between: bool = False) -> None:
        super().__init__()
        for name, columns in (("a", 32), ("b", 64), ("c", 40)):
            self[name] = nn.QuantizedLinear(64, columns, bias=False, group_size=32, bits=4)
        self.changed_between = changed_between
        self.layers: list[Any] = []

    def __call__(self, x: mx.array, cache: Any = None) -> list[mx.array]:
        x = mx.random.normal((1, 2, 64), key=mx.random.key(0)) if x.ndim == 2 else x
        first = self.a(x)
        if self.changed_between:
            x += 1
        return [first, self.b(x), self.c(x)]


@pytest.fixture
def parent() -> Parent:
    mx.random.seed(3)
    return Parent()


@pytest.fixture
def kernels(parent: Parent) -> CountedProducts:
    kernels = CountedProducts()
    assert [set(group) for group in install_kernels(parent, kernels).together] == [{"a", "b", "c"}]
    kernels.shapes.clear()
    return kernels


def rows(seed: int, count: int = 2) -> mx.array:
    return mx.random.normal((1, count, 64), key=mx.random.key(seed))


def expected(linear: Any, x: mx.array) -> mx.array:
    """By the weights that the linear has, dequantised."""
    weight = mx.dequantize(linear.weight, linear.scales, linear.biases, group_size=32, bits=4)
    return x @ weight.T


def is_right(linear: Any, x: mx.array) -> bool:
    return bool(mx.allclose(linear(x), expected(linear, x), atol=1e-4))


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
def test_one_product_in_any_order(parent: Parent, kernels: CountedProducts, order: str) -> None:
    for seed in (1, 2):
        x = rows(seed)
        assert all(is_right(parent[name], x) for name in order)
    assert kernels.shapes == [(2, 136)] * 2


def test_right_when_called_alone_twice_or_with_another_x(parent: Parent, kernels: CountedProducts) -> None:
    x, y = rows(1), rows(2)
    for name, given in [("a", x), ("a", x), ("b", y), ("c", x), ("b", x), ("a", y), ("c", y), ("c", y), ("b", y)]:
        assert is_right(parent[name], given), (name, kernels.shapes)


def test_a_part_is_taken_once(parent: Parent, kernels: CountedProducts) -> None:
    """The array that a linear is called with again may have been changed in place."""
    x = rows(1)
    assert is_right(parent.a, x)
    x += 1
    assert is_right(parent.a, x)
    assert len(kernels.shapes) == 2


def test_equal_rows_in_another_array_are_another_x(parent: Parent, kernels: CountedProducts) -> None:
    assert is_right(parent.a, rows(1))
    assert is_right(parent.b, rows(1))
    assert len(kernels.shapes) == 2


def test_more_rows_go_past_the_product(parent: Parent, kernels: CountedProducts) -> None:
    x = rows(1, 33)
    assert all(is_right(parent[name], x) for name in "abc")
    assert kernels.shapes == []


def test_nothing_is_kept_after_the_last_sibling(parent: Parent, kernels: CountedProducts) -> None:
    together = parent.a._product._siblings
    x = rows(1)
    parent.a(x), parent.b(x)
    assert together._held.x is x
    parent.c(x)
    assert together._held is None


def test_an_array_changed_in_place_is_no_common_x() -> None:
    model = Parent(changed_between=True)
    installed = install_kernels(model, CountedProducts())
    assert [set(group) for group in installed.together] == [{"b", "c"}]
    x = rows(1)
    before = x + 0
    first, *others = model(x)
    assert mx.allclose(first, expected(model.a, before), atol=1e-4)
    for linear, other in zip((model.b, model.c), others, strict=True):
        assert mx.allclose(other, expected(linear, before + 1), atol=1e-4)


def test_a_part_is_a_view(parent: Parent, kernels: CountedProducts) -> None:
    x = rows(1, 2)
    parts = [parent[name](x) for name in "abc"]
    mx.eval(parts)
    row = 4 * (32 + 64 + 40)
    assert [memoryview(part).strides for part in parts] == [(2 * row, row, 4)] * 3
