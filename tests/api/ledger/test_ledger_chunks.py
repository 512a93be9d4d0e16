"""Large batches are entered and cancelled in many transactions; these tests stand between two of them."""

import time
from collections.abc import Callable, Iterator

import pytest
from ledger_samples import finished, lines

from api.dataset.request_line import InputLine
from api.errors import LedgerError
from api.ledger import batches, recording
from api.ledger.connection import writing
from api.ledger.ledger import Ledger
from api.schemas import Batch, RequestCounts
from api.states import BatchState, RequestState

Enter = Callable[..., Batch]
BATCH = "batch_entering"


def leave_half_entered(ledger: Ledger) -> None:
    """What a process leaves that is killed between two chunks."""
    row = {"id": BATCH, "model": "smollm2", "priority": "normal", "input_path": "x", "input_sha256": "00"}
    with writing(ledger.engine, ledger.path) as connection:
        batches.begin_batch(connection, {**row, "fingerprint": "f", "output_format": "openai"})
        batches.enter_requests(connection, BATCH, list(enumerate(lines(3))))


def test_results_are_recorded_while_a_batch_is_entered(ledger: Ledger, enter: Enter) -> None:
    before = enter(1)
    seen: list[Batch] = []

    def interrupted() -> Iterator[InputLine]:
        for number, line in enumerate(lines(2 * batches.CHUNK)):
            if number == batches.CHUNK + 7:
                assert ledger.record([finished(f"{before.id}-0")]) == [f"{before.id}-0"]
                seen.append(ledger.batch(BATCH))
            yield line

    assert enter(lines_=interrupted(), batch_id=BATCH).counts == RequestCounts(queued=2 * batches.CHUNK)
    assert [(batch.state, batch.counts) for batch in seen] == [
        (BatchState.VALIDATING, RequestCounts(queued=batches.CHUNK))
    ]


def test_a_half_entered_batch_is_not_gone_on_with(ledger: Ledger) -> None:
    leave_half_entered(ledger)
    assert ledger.batch(BATCH).state is BatchState.VALIDATING
    assert ledger.find_unfinished("f") is None


def test_a_half_entered_batch_goes_when_its_process_must_be_dead(
    ledger: Ledger, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_half_entered(ledger)
    young = enter(1)
    assert [batch.id for batch in ledger.batches()] == [young.id, BATCH]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + batches.ABANDONED_SECONDS + 60)
    later = enter(1)
    assert [batch.id for batch in ledger.batches()] == [later.id, young.id]
    assert list(ledger.results(BATCH)) == []


def test_cancelling_ends_an_entry_that_is_under_way(ledger: Ledger, enter: Enter) -> None:
    def interrupted() -> Iterator[InputLine]:
        for number, line in enumerate(lines(2 * batches.CHUNK)):
            if number == batches.CHUNK + 7:
                assert len(ledger.cancel(BATCH)) == batches.CHUNK
            yield line

    with pytest.raises(LedgerError, match=f"batch {BATCH} is cancelled while its requests were entered"):
        enter(lines_=interrupted(), batch_id=BATCH)
    assert ledger.batches() == []


def test_many_requests_are_cancelled_in_several_transactions(ledger: Ledger, enter: Enter) -> None:
    count = 2 * recording.CHUNK + 3
    batch = enter(count)
    ledger.record([finished(f"{batch.id}-5")])
    with writing(ledger.engine, ledger.path) as connection:
        recording.begin_cancelling(connection, batch.id)
        first = recording.close_some(connection, batch.id, RequestState.CANCELLED)
    between = ledger.batch(batch.id)
    assert between.state is BatchState.CANCELLING
    assert between.counts == RequestCounts(completed=1, cancelled=recording.CHUNK, queued=count - 1 - recording.CHUNK)
    assert ledger.find_unfinished("f") is None
    rest = ledger.cancel(batch.id)
    assert first + rest == [f"{batch.id}-{index}" for index in range(count) if index != 5]
    assert ledger.batch(batch.id).state is BatchState.CANCELLED
    last = ledger.history(batch.id, request_ids=[f"{batch.id}-{count - 1}"])
    assert [entry.kind for entry in last] == ["queued", "cancelled"]
