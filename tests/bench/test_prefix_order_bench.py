"""The order of serving that the bench compares runs here too; its engine and its figures do not."""

import pytest

from bench import prefix_order
from bench.queue_scale import station


def test_kinds_that_come_in_turn_are_served_in_turn_or_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_order, "WAITING", 40)
    monkeypatch.setattr(prefix_order, "TAKEN", 30)
    with station() as (_, server):
        measured = [prefix_order.cost(server.url, order) for order in prefix_order.ORDERS]
    assert [row[:3] for row in measured] == [[40, "arrival", 29], [40, "prefix", 1]]
