"""Deadlines in the ledger."""

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from ledger_samples import finished, lines, started

from api.ledger import recording
from api.ledger.connection import writing
from api.ledger.ledger import Ledger
from api.ledger.migrate import SCRIPTS
from api.schemas import Batch, RequestCounts
from api.states import BatchState

Enter = Callable[..., Batch]
NOTHING: frozenset[str] = frozenset()


def limited(ledger: Ledger, batch_id: str, expires_at: float | None, count: int = 1) -> Batch:
    return ledger.create_batch(
        batch_id=batch_id,
        model="smollm2",
        priority="normal",
        input_path="in.jsonl",
        input_sha256="00",
        fingerprint="f",
        output_path=None,
        output_format="jsonl",
        lines=lines(count),
        expires_at=expires_at,
    )


def set_state(ledger: Ledger, batch_id: str, state: BatchState) -> None:
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batches SET state = ? WHERE id = ?", (state.value, batch_id))


def test_overdue_is_what_has_reached_its_deadline_and_is_open(ledger: Ledger) -> None:
    for batch_id, expires_at in (("batch_a", 20.0), ("batch_b", 10.0), ("batch_c", 20.1), ("batch_d", None)):
        assert limited(ledger, batch_id, expires_at).expires_at == expires_at
    limited(ledger, "batch_e", 5.0)
    ledger.record([finished("batch_e-0")])
    limited(ledger, "batch_f", 5.0)
    set_state(ledger, "batch_f", BatchState.VALIDATING)
    limited(ledger, "batch_g", 15.0)
    set_state(ledger, "batch_g", BatchState.CANCELLING)
    assert ledger.overdue(9.9) == []
    assert ledger.overdue(20.0) == ["batch_b", "batch_g", "batch_a"]


def test_what_is_spared_stays_open_however_many_transactions_it_takes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "CHUNK", 2)
    limited(ledger, "batch_a", 5.0, count=7)
    ledger.record([started("batch_a-2")])
    spared = {"batch_a-1", "batch_a-4", "batch_other-0"}
    assert ledger.expire("batch_a", spared=spared) == [f"batch_a-{index}" for index in (0, 2, 3, 5, 6)]
    between = ledger.batch("batch_a")
    assert (between.state, between.counts) == (BatchState.IN_PROGRESS, RequestCounts(queued=2, expired=5))
    assert ledger.overdue(5.0) == ["batch_a"]
    assert ledger.expire("batch_a", spared=spared) == []
    ledger.record([finished("batch_a-1"), finished("batch_a-4"), finished("batch_a-0")])
    after = ledger.batch("batch_a")
    assert (after.state, after.counts) == (BatchState.EXPIRED, RequestCounts(completed=2, expired=5))
    assert ledger.overdue(5.0) == []
    history = ledger.history("batch_a", request_ids=["batch_a-2"])
    told = [(entry.kind, entry.worker, entry.attempt) for entry in history]
    assert told == [("queued", "", 0), ("started", "mac-1", 1), ("expired", "mac-1", 1)]


def test_a_request_travels_with_the_deadline_of_its_batch(ledger: Ledger) -> None:
    limited(ledger, "batch_a", 5.0, count=2)
    limited(ledger, "batch_b", None)
    assert [request.expires_at for request in ledger.open_requests("batch_a")] == [5.0, 5.0]
    assert [request.expires_at for request in ledger.open_requests("batch_b")] == [None]


def test_an_expired_batch_is_unfinished_until_its_output_is_delivered(ledger: Ledger) -> None:
    batch = limited(ledger, "batch_a", 5.0)
    ledger.expire("batch_a", spared=NOTHING)
    unfinished = ledger.find_unfinished("f")
    assert unfinished is not None
    assert (unfinished.id, unfinished.state) == (batch.id, BatchState.EXPIRED)
    ledger.mark_delivered("batch_a")
    assert ledger.find_unfinished("f") is None


def test_batches_of_an_older_ledger_have_no_deadline(tmp_path: Path, enter: Enter) -> None:
    path = tmp_path / "ledger.sqlite3"  # that of `enter`
    batch = enter(1)
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    with Ledger.open(path) as ledger, writing(ledger.engine, path) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0005")
    with Ledger.open(path) as ledger:
        assert ledger.batch(batch.id) == batch
        assert ledger.overdue(1e12) == []
