"""What waits for the drafter: in order, with its rows, and without the passes that the rows come from."""

import mlx.core as mx
import pytest

from worker.engine.session.backlog import Backlog


def rows(first: int, count: int) -> mx.array:
    """Rows [count, 3] that tell their place."""
    return mx.arange(first, first + count)[:, None] * mx.array([1, 10, 100])


def test_all_is_taken_at_once_and_in_order() -> None:
    backlog = Backlog()
    assert backlog.take() == ([], None)
    backlog.note([7], rows(0, 1))
    backlog.note([], rows(9, 0))
    backlog.note([8, 7, 5], rows(1, 3))
    assert len(backlog) == 4
    tokens, hidden = backlog.take()
    assert hidden is not None
    assert tokens == [7, 8, 7, 5]
    assert hidden.tolist() == [[0, 0, 0], [1, 10, 100], [2, 20, 200], [3, 30, 300]]
    assert (len(backlog), backlog.has_rows) == (0, False)
    assert backlog.take() == ([], None)


def test_tokens_may_wait_without_rows() -> None:
    backlog = Backlog()
    backlog.note([7], None)
    backlog.note([8, 9], None)
    assert not backlog.has_rows
    assert backlog.take() == ([7, 8, 9], None)


@pytest.mark.parametrize("count", range(7))
def test_a_cut_leaves_the_first_ones(count: int) -> None:
    backlog = Backlog()
    backlog.note([7, 8], rows(0, 2))
    backlog.note([9, 5, 6], rows(2, 3))
    backlog.cut(count)
    kept = min(count, 5)
    assert (len(backlog), backlog.has_rows) == (kept, kept > 0)
    backlog.note([4], rows(kept, 1))
    tokens, hidden = backlog.take()
    assert hidden is not None
    assert tokens == [*[7, 8, 9, 5, 6][:kept], 4]
    assert hidden[:, 0].tolist() == list(range(kept + 1))


def test_rows_hold_nothing_of_what_they_were_computed_from() -> None:
    backlog = Backlog()
    before = mx.get_active_memory()
    for number in range(8):
        activations = mx.full((1000, 250), number, dtype=mx.float32)
        mx.eval(activations)  # as its pass does, to come to a token
        backlog.note([number], activations.sum(axis=0)[None, :4] + 1)
    mx.synchronize()
    del activations
    assert mx.get_active_memory() - before < 1000 * 250 * 4
    _, hidden = backlog.take()
    assert hidden is not None
    assert hidden[:, 3].tolist() == [1000 * number + 1 for number in range(8)]
