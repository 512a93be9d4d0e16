from collections.abc import Callable, Iterator

import pytest
from ledger_samples import finished, lines, refused, started

from api.dataset.request_line import InputLine, LineError
from api.errors import InputError, NotFoundError
from api.ledger.ledger import Ledger
from api.schemas import Batch, ChatMessage, RequestBody, RequestCounts
from api.states import BatchState, RequestState

Enter = Callable[..., Batch]


def test_a_batch_keeps_its_requests_in_order(ledger: Ledger, enter: Enter) -> None:
    chat = RequestBody(
        messages=[ChatMessage(role="user", content="a\x00b\r\u2028é")],
        logit_bias={5: -1.5},
        seed=2**64 - 1,
        stop=["\n"],
        chat_template_kwargs={"deep": {"null": None}},
    )
    raw = RequestBody(prompt="", raw=True, max_tokens=3)
    batch = enter(lines_=[InputLine(1, "first", chat), InputLine(7, "second", raw)])

    assert batch.state is BatchState.IN_PROGRESS
    assert batch.counts == RequestCounts(queued=2)
    assert (batch.model, batch.priority, batch.output_path) == ("smollm2", "normal", "/data/out.jsonl")
    first, second = ledger.results(batch.id)
    assert (first.request_id, first.index, first.line, first.custom_id) == (f"{batch.id}-0", 0, 1, "first")
    assert (second.request_id, second.index, second.line, second.custom_id) == (f"{batch.id}-1", 1, 7, "second")
    assert (first.body, second.body) == (chat, raw)
    assert (first.state, first.attempts, first.result, first.stats) == (RequestState.QUEUED, 0, None, None)
    sent = list(ledger.open_requests(batch.id))
    assert [request.request_id for request in sent] == [first.request_id, second.request_id]
    assert RequestBody(**sent[0].model_dump(exclude={"request_id", "expires_at"})) == chat


def test_bad_lines_are_requests_that_have_failed(ledger: Ledger, enter: Enter) -> None:
    good = lines(2)
    bad = LineError(3, "invalid_request", "temperature: 9e9 is not at most 100", None)
    batch = enter(lines_=[good[0], bad, good[1]])
    assert batch.counts == RequestCounts(queued=2, failed=1)
    assert [request.request_id for request in ledger.open_requests(batch.id)] == [f"{batch.id}-0", f"{batch.id}-2"]
    row = ledger.request(f"{batch.id}-1")
    assert (row.state, row.custom_id, row.attempts, row.worker) == (RequestState.FAILED, "request-3", 0, None)
    assert row.result is not None
    assert row.result.error is not None
    assert row.result.error.code == "invalid_request"
    assert row.result.error.message == "line 3: temperature: 9e9 is not at most 100"

    ledger.record([finished(f"{batch.id}-0"), finished(f"{batch.id}-2")])
    counts = ledger.batch(batch.id).counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)


def test_a_batch_of_bad_lines_alone_is_complete_at_once(enter: Enter) -> None:
    batch = enter(lines_=[LineError(1, "invalid_json", "no", None)])
    assert batch.state is BatchState.COMPLETED
    assert batch.finished_at is not None


def test_a_repeated_custom_id_is_no_obstacle(enter: Enter) -> None:
    again = LineError(2, "duplicate_custom_id", "already used", "c0")
    assert enter(lines_=[*lines(1), again]).counts == RequestCounts(queued=1, failed=1)


def test_a_batch_is_entered_whole_or_not_at_all(ledger: Ledger, enter: Enter) -> None:
    def broken() -> Iterator[InputLine | LineError]:
        yield from lines(2500)
        raise InputError("the disk was pulled out")

    with pytest.raises(InputError, match="pulled out"):
        enter(lines_=broken())
    assert ledger.batches() == []
    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM requests").scalar() == 0


def test_long_batches_stream_in_pages_while_results_come_in(ledger: Ledger, enter: Enter) -> None:
    batch = enter(1203)
    done = [finished(f"{batch.id}-{index}") for index in range(0, 1203, 3)]
    ledger.record(done)
    rows = ledger.results(batch.id)
    seen = [next(rows).index]
    ledger.record([finished(f"{batch.id}-1"), finished(f"{batch.id}-1202")])
    seen += [row.index for row in rows]
    assert seen == list(range(1203))
    left = [index for index in range(1203) if index % 3 and index not in (1, 1202)]
    assert [request.request_id for request in ledger.open_requests(batch.id)] == [f"{batch.id}-{n}" for n in left]
    completed = ledger.results(batch.id, states={RequestState.COMPLETED})
    assert [row.index for row in completed] == sorted({*range(0, 1203, 3), 1, 1202})
    assert ledger.batch(batch.id).counts == RequestCounts(completed=403, queued=800)


def test_batches_are_listed_newest_first(ledger: Ledger, enter: Enter) -> None:
    ids = [enter().id for _ in range(4)]
    assert [batch.id for batch in ledger.batches(limit=3)] == ids[:0:-1]


def test_a_batch_is_found_by_the_start_of_its_id(ledger: Ledger, enter: Enter) -> None:
    with pytest.raises(NotFoundError, match="there is no batch in this ledger yet"):
        ledger.resolve("latest")
    for name in ("batch_01AB0", "batch_01AC0", "batch_01AC1"):
        enter(batch_id=name)
    assert ledger.resolve("latest") == "batch_01AC1"
    assert ledger.resolve("batch_01AB") == "batch_01AB0"
    assert ledger.resolve("01ab") == "batch_01AB0"
    assert ledger.resolve("batch_01AC1") == "batch_01AC1"
    with pytest.raises(NotFoundError, match="more than one batch starts with '01AC'"):
        ledger.resolve("01AC")
    for absent in ("batch_02", "batch%01AB", "01_B0"):
        with pytest.raises(NotFoundError, match="no batch starts with"):
            ledger.resolve(absent)


@pytest.mark.parametrize("ask", ["batch", "stats", "cancel", "output_of", "mark_delivered"])
def test_an_unknown_batch_is_not_found(ledger: Ledger, ask: str) -> None:
    with pytest.raises(NotFoundError, match="no batch batch_none in this ledger"):
        getattr(ledger, ask)("batch_none")


def test_an_unknown_request_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="no request batch_none-0"):
        ledger.request("batch_none-0")


def test_a_batch_is_unfinished_until_its_output_is_delivered(ledger: Ledger, enter: Enter) -> None:
    assert ledger.find_unfinished("f") is None
    batch = enter(1, fingerprint="f")
    enter(1, fingerprint="g")

    def found() -> str | None:
        unfinished = ledger.find_unfinished("f")
        return None if unfinished is None else unfinished.id

    assert found() == batch.id
    ledger.record([refused(f"{batch.id}-0")])
    assert ledger.batch(batch.id).state is BatchState.COMPLETED
    assert found() == batch.id
    ledger.mark_delivered(batch.id)
    assert found() is None


def test_a_cancelled_batch_is_not_gone_on_with(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2, fingerprint="f")
    ledger.cancel(batch.id)
    assert ledger.find_unfinished("f") is None


def test_models_of_open_batches(ledger: Ledger, enter: Enter) -> None:
    assert ledger.open_models() == []
    first = enter(1)
    enter(1)
    assert ledger.open_models() == ["smollm2"]
    ledger.record([started(f"{first.id}-0"), finished(f"{first.id}-0")])
    ledger.cancel(ledger.resolve("latest"))
    assert ledger.open_models() == []


def test_a_file_name_that_is_not_utf8_is_no_obstacle(ledger: Ledger) -> None:
    batch = ledger.create_batch(
        batch_id="batch_1",
        model="m",
        priority="high",
        input_path="/data/caf\udce9.jsonl",
        input_sha256="00",
        fingerprint="f",
        output_path=None,
        output_format="text",
        lines=lines(1),
    )
    assert batch.input_path == "/data/caf\ufffd.jsonl"
