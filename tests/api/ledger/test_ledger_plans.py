"""How SQLite finds what is asked for: with a million requests in a batch, the difference between 0.1 s and minutes."""

from collections.abc import Callable
from typing import Any

import pytest
from ledger_samples import finished, measured
from sqlalchemy import event

from api.ledger.ledger import Ledger
from api.schemas import Batch
from api.states import FINAL_REQUEST_STATES

Enter = Callable[..., Batch]

RESULT_OF_REQUEST = "SEARCH results USING INDEX sqlite_autoindex_results_1 (request_id=?) LEFT-JOIN"


def plans(ledger: Ledger, ask: Callable[[], object]) -> set[str]:
    """The steps over requests, results, tallies and events in the plans of all queries that `ask` makes."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        asked.append((statement, parameters))

    event.listen(ledger.engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        event.remove(ledger.engine, "before_cursor_execute", note)
    steps = set()
    with ledger.engine.connect() as connection:
        for statement, parameters in asked:
            if statement.startswith("SELECT"):
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                steps |= {detail for *_, detail in rows}
    return {
        step for step in steps if any(name in step for name in ("requests", "results", "tallies", "events", "TEMP"))
    }


@pytest.fixture
def batch(ledger: Ledger, enter: Enter) -> Batch:
    entered = enter(3)
    ledger.record([finished(f"{entered.id}-0", notes=["a note"], **measured(3, 4, wall=10.0, ttft=5.0))])
    return entered


def test_a_batch_is_counted_without_a_look_at_its_requests(ledger: Ledger, batch: Batch) -> None:
    assert plans(ledger, lambda: ledger.batch(batch.id)) == set()
    assert plans(ledger, ledger.batches) == {"USE TEMP B-TREE FOR ORDER BY"}


def test_stats_reads_no_request_and_no_result_in_vain(ledger: Ledger, batch: Batch) -> None:
    steps = plans(ledger, lambda: ledger.stats(batch.id))
    assert {step for step in steps if "TEMP" not in step} == {
        "SEARCH tallies USING INDEX sqlite_autoindex_tallies_1 (batch_id=?)",
        "SEARCH requests USING COVERING INDEX ix_requests_started (batch_id=? AND started_at>?)",
        "SEARCH requests USING INDEX ix_requests_finished (batch_id=? AND finished_at>?)",
        "SEARCH results USING INDEX ix_results_ttft (<expr>=? AND ttft_ms>?)",
        "SEARCH results USING INDEX ix_results_notes (request_id>? AND request_id<?)",
        "SEARCH results USING INDEX ix_results_further_choices (request_id>? AND request_id<?)",
    }
    # Reasons and notes are grouped, and notes sorted by their number.
    sorts = {step for step in steps if "TEMP" in step}
    assert sorts == {"USE TEMP B-TREE FOR GROUP BY", "USE TEMP B-TREE FOR ORDER BY"}


@pytest.mark.parametrize("states", [None, FINAL_REQUEST_STATES])
def test_results_come_page_by_page_in_the_order_of_an_index(ledger: Ledger, batch: Batch, states: Any) -> None:
    steps = plans(ledger, lambda: list(ledger.results(batch.id, states=states)))
    of_batch = "SEARCH requests USING INDEX sqlite_autoindex_requests_2 (batch_id=? AND idx>?)"
    assert steps == {of_batch, RESULT_OF_REQUEST}


def test_open_requests_come_from_the_index_of_what_is_open(ledger: Ledger, batch: Batch) -> None:
    steps = plans(ledger, lambda: list(ledger.open_requests(batch.id, start=1)))
    assert steps == {"SEARCH requests USING INDEX ix_requests_open (batch_id=? AND idx>?)"}
    steps = plans(ledger, lambda: ledger.count_open(batch.id, stop=2))
    assert steps == {"SEARCH requests USING INDEX ix_requests_open (batch_id=? AND idx<?)"}


def test_the_history_of_a_batch_comes_page_by_page_in_the_order_of_an_index(ledger: Ledger, batch: Batch) -> None:
    requests = "SEARCH requests USING INDEX sqlite_autoindex_requests_2 (batch_id=? AND idx>?)"
    events = "SEARCH events USING INDEX ix_events_batch (<expr>=? AND rowid>?)"
    assert plans(ledger, lambda: list(ledger.history(batch.id))) == {requests, events}
    assert plans(ledger, lambda: list(ledger.history(batch.id, kinds=["late"]))) == {events}
    assert plans(ledger, lambda: list(ledger.history(batch.id, after=1))) == {events}


def test_the_history_of_a_request_reads_its_own_rows_alone(ledger: Ledger, batch: Batch) -> None:
    steps = plans(ledger, lambda: list(ledger.history(batch.id, request_ids=[f"{batch.id}-1"])))
    assert steps == {
        "SEARCH requests USING INDEX sqlite_autoindex_requests_1 (id=?)",
        "SEARCH events USING INDEX sqlite_autoindex_events_1 (request_id=?)",
        "USE TEMP B-TREE FOR ORDER BY",
    }


def test_requests_are_found_by_name_in_indices(ledger: Ledger, batch: Batch) -> None:
    assert plans(ledger, lambda: ledger.requests_named(batch.id, "c1")) == {
        "SEARCH requests USING INDEX sqlite_autoindex_requests_1 (id=?)",
        "SEARCH requests USING INDEX ix_requests_custom_id (custom_id=?)",
    }
