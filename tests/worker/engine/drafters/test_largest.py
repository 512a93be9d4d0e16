"""The largest entries of rows, against sorting them."""

import math

import mlx.core as mx
import numpy as np
import pytest

from worker.engine.drafters.largest import largest


@pytest.mark.parametrize(
    ("width", "count"), [(1, 1), (7, 3), (97, 16), (97, 96), (97, 97), (97, 200), (1000, 1), (5003, 16), (4096, 256)]
)
def test_the_places_are_those_of_a_sorted_row_in_ascending_order(width: int, count: int) -> None:
    rows = np.random.default_rng(width).normal(size=(5, width)).astype(np.float32)
    expected = np.sort(np.argsort(-rows, axis=-1)[:, :count], axis=-1)
    np.testing.assert_array_equal(np.array(largest(mx.array(rows), count)), expected)


def test_neighbours_are_all_found() -> None:
    rows = mx.zeros((1, 900)).at[0, 440:456].add(1.0)
    assert largest(rows, 16).tolist() == [list(range(440, 456))]


def test_rows_with_fewer_finite_entries_than_asked_for_have_distinct_places() -> None:
    rows = mx.full((1, 1003), -math.inf)
    rows[0, 1002] = 1.0
    places = largest(rows, 40)[0].tolist()
    assert len(set(places)) == 40
    assert 1002 in places
    assert all(0 <= place < 1003 for place in places)
