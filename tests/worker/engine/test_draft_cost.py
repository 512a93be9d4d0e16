"""What a draft costs: running medians by the passes that it took."""

import pytest

from worker.engine.draft_cost import REMEMBERED, DraftCost


def learned(*drafts: tuple[int, float]) -> DraftCost:
    """After a first draft, which does not count, and `drafts` of (passes, milliseconds)."""
    cost = DraftCost()
    cost.learn(1, 5000.0)
    for passes, milliseconds in drafts:
        cost.learn(passes, milliseconds)
    return cost


def test_the_first_draft_compiles_kernels_and_does_not_count() -> None:
    cost = DraftCost()
    assert cost.learn(8, 900.0) == 0.0
    assert cost.samples == {}
    assert cost.learn(8, 3.0) == 3.0


def test_a_hiccup_does_not_move_the_median() -> None:
    cost = learned((8, 3.0), (8, 3.2), (8, 2.8))
    assert cost.learn(8, 400.0) == (3.0 + 3.2) / 2
    assert cost.learn(8, 3.1) == 3.1


def test_numbers_of_passes_are_learned_apart_and_unknown_ones_lie_between() -> None:
    cost = learned((2, 3.0), (6, 9.0), (6, 11.0), (6, 10.0))
    # Linear from nothing over 3 ms for 2 and 10 ms for 6 passes; beyond, 10 / 6 ms each.
    expected = {0: 0.0, 1: 1.5, 2: 3.0, 3: 4.75, 5: 8.25, 6: 10.0, 9: 15.0}
    assert {passes: cost.typical(passes) for passes in expected} == pytest.approx(expected)
    assert learned((0, 0.5)).typical(3) == 0.5
    assert DraftCost().typical(4) == 0.0


def test_a_few_times_are_not_enough_to_go_by() -> None:
    cost = learned((1, 2.0), (8, 3.0), (8, 3.0))
    assert not cost.is_known
    cost.learn(4, 3.0)
    assert cost.is_known
    assert not DraftCost().is_known


def test_old_times_are_forgotten() -> None:
    cost = learned(*[(4, 10.0)] * 500, *[(4, 20.0)] * (REMEMBERED // 2 + 1))
    assert cost.typical(4) == 20.0
    assert len(cost.samples[4]) == REMEMBERED


def test_remembered_times_count_from_the_start() -> None:
    cost = DraftCost({4: [2.0, 3.0, 4.0], 9: []})
    assert cost.learn(4, 700.0) == 3.0  # kernels are compiled in every process
    assert cost.samples == {4: [2.0, 3.0, 4.0]}
    assert DraftCost(learned((4, 2.0), (4, 6.0)).samples).typical(4) == 4.0
