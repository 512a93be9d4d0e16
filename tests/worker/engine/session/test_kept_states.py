"""Copies of whole layers: independent of their originals, whatever a cache class is made of."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import RotatingKVCache

from worker.engine.session.states import detached, state_bytes, states_of
from worker.engine.verify.copies import copied_all


class Pair(NamedTuple):
    first: mx.array
    second: mx.array


class Slotted:
    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array = mx.arange(3)


def everything() -> Any:
    return SimpleNamespace(
        array=mx.arange(4),
        scalar=mx.array(7),
        several=[mx.arange(3), (mx.arange(2), None)],
        by_name={"a": mx.arange(5)},
        part=SimpleNamespace(array=mx.arange(6)),
        pair=Pair(mx.arange(2), mx.arange(3)),
        recent=deque([mx.arange(2)]),
        slotted=Slotted(),
        offset=3,
        dtype=mx.float32,
    )


def values(layer: Any) -> list[Any]:
    arrays = [layer.array, layer.several[0], layer.several[1][0], layer.by_name["a"], layer.part.array]
    arrays += [*layer.pair, layer.recent[0], layer.slotted.array]
    return [layer.scalar.item(), layer.offset, *(array.tolist() for array in arrays)]


def overwrite(layer: Any) -> None:
    """Change in place all that can be."""
    for array in (layer.array, layer.several[0], layer.several[1][0], layer.by_name["a"], layer.part.array):
        array[0] = 99
    for array in (*layer.pair, layer.recent[0], layer.slotted.array):
        array[0] = 99
    layer.scalar += 1
    layer.several.append(mx.zeros(1))
    layer.by_name["b"] = mx.zeros(1)
    layer.recent.append(mx.zeros(1))


@pytest.mark.parametrize("copies_of", [detached, copied_all])
def test_a_copy_and_its_original_go_separate_ways(copies_of: Callable[[list[Any]], list[Any]]) -> None:
    original = everything()
    (twin,) = copies_of([original])
    overwrite(original)
    assert values(twin) == values(everything())
    (second,) = copies_of([twin])
    overwrite(twin)
    assert values(second) == values(everything())
    assert len(second.several) == 2
    assert list(second.by_name) == ["a"]


def test_parts_of_the_model_are_not_copied() -> None:
    norm, function = nn.RMSNorm(8), lambda: None
    layer = SimpleNamespace(norm=norm, function=function, array=mx.arange(4))
    (twin,) = detached([layer])
    assert twin.norm is norm
    assert twin.function is function
    assert state_bytes([layer]) == 16


def test_bytes_are_those_of_all_arrays() -> None:
    layer = SimpleNamespace(a=mx.zeros((3, 5)), b=[mx.zeros(7, dtype=mx.bfloat16)], c={"d": mx.zeros(2)}, e=None, f=4)
    assert state_bytes([layer, layer]) == 2 * (60 + 14 + 8)


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("sizes", [[20, 1, 1, 1], [20, 5, 1], [3, 20, 2, 20], [20]])
def test_a_sliding_window_goes_on_without_the_rows_it_has_lost(keep: int, sizes: list[int]) -> None:
    window, count = RotatingKVCache(max_size=8, keep=keep), 0
    for size in sizes:
        append(window, count, size)
        count += size
    (twin,) = states_of([window])
    assert twin.keys.shape[-2] <= 8
    assert state_bytes([window]) == twin.keys.nbytes + twin.values.nbytes
    for size in (1, 1, 3, 1, 12, 1):
        assert append(twin, count, size) == append(window, count, size)
        assert (twin.offset, twin.size()) == (window.offset, window.size())
        count += size


def append(window: RotatingKVCache, start: int, size: int) -> list[float]:
    """Append the rows [start, start + size); returns all rows that attention then sees."""
    rows = mx.arange(start, start + size, dtype=mx.float32)[None, None, :, None]
    keys, values = window.update_and_fetch(rows, rows)
    assert keys.tolist() == values.tolist()
    seen: list[float] = keys[0, 0, :, 0].tolist()
    return seen
