import logging
import sqlite3
from collections.abc import Callable

import pytest
from ledger_samples import finished, handed_back, measured, refused, started

from api.identity import batch_of
from api.ledger.ledger import Ledger
from api.schemas import (
    Batch,
    Choice,
    GenerationResult,
    JobStats,
    Phases,
    RequestCounts,
    RequestError,
    RequestEvent,
    ResolvedValue,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from api.states import BatchState, RequestState

Enter = Callable[..., Batch]
POISON = RequestError(code="worker_lost", message="2 workers died while running it", status=500)


def kinds(ledger: Ledger, request_id: str) -> list[tuple[str, str, int]]:
    """Of its events."""
    first, *events = ledger.history(batch_of(request_id), request_ids=[request_id])
    assert (first.kind, first.worker, first.attempt) == ("queued", "", 0)
    return [(entry.kind, entry.worker, entry.attempt) for entry in events]


def text_of(ledger: Ledger, request_id: str) -> str | None:
    result = ledger.request(request_id).result
    return None if result is None else result.text


def test_a_request_runs_and_completes(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    request = f"{batch.id}-0"

    assert ledger.record([started(request, worker="mac-2", attempt=3, at=50.0)]) == []
    row = ledger.request(request)
    assert (row.state, row.worker, row.attempts, row.started_at) == (RequestState.RUNNING, "mac-2", 3, 50.0)
    assert ledger.batch(batch.id).counts == RequestCounts(queued=1, running=1)

    assert ledger.record([finished(request, worker="mac-2", attempt=3, at=60.0, text="four")]) == [request]
    row = ledger.request(request)
    assert (row.state, row.started_at, row.finished_at) == (RequestState.COMPLETED, 50.0, 60.0)
    assert text_of(ledger, request) == "four"
    open_batch = ledger.batch(batch.id)
    assert (open_batch.state, open_batch.finished_at) == (BatchState.IN_PROGRESS, None)

    ledger.record([finished(f"{batch.id}-1")])
    closed = ledger.batch(batch.id)
    assert closed.state is BatchState.COMPLETED
    assert closed.finished_at is not None
    assert closed.finished_at >= closed.created_at


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (finished("r", finish_reason="stop"), RequestState.COMPLETED),
        (finished("r", finish_reason="length"), RequestState.COMPLETED),
        (finished("r", finish_reason="time_limit"), RequestState.COMPLETED),
        (finished("r", finish_reason="repetition"), RequestState.COMPLETED),
        (finished("r", finish_reason="cancelled"), RequestState.CANCELLED),
        (finished("r", further_choices=[Choice(finish_reason="cancelled")]), RequestState.CANCELLED),
        (finished("r", further_choices=[Choice(finish_reason="time_limit")]), RequestState.COMPLETED),
        (refused("r"), RequestState.FAILED),
    ],
)
def test_the_result_decides_the_final_state(
    ledger: Ledger, enter: Enter, event: RequestEvent, state: RequestState
) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([event.model_copy(update={"request_id": request})])
    assert ledger.request(request).state is state


def test_every_field_of_a_result_comes_back(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    result = GenerationResult(
        request_id=request,
        text="a\x00b\x1b[31m\r\n\u2028\U0001f34f\x7f",
        reasoning="so\x00 it is",
        finish_reason="stop",
        matched_stop="\x00",
        token_ids=[0, 2**31, 7],
        logprobs=[
            TokenLogprob(token_id=7, token="\x00", logprob=-0.1, top=[TopLogprob(token_id=8, token="b", logprob=-2.5)])
        ],
        usage=Usage(prompt_tokens=11, completion_tokens=3, cached_prompt_tokens=5, reasoning_tokens=2),
        sampling={
            "temperature": ResolvedValue(value=0.5, source="model"),
            "stop": ResolvedValue(value=["x"], source="request"),
        },
        notes=["one", "two"],
        further_choices=[
            Choice(
                text="b\x00\U0001f34f",
                reasoning="or so",
                finish_reason="time_limit",
                matched_stop=9,
                token_ids=[1, 2],
                logprobs=[TokenLogprob(token_id=1, token="b", logprob=-0.5, top=[])],
            ),
            Choice(text="", finish_reason="repetition", matched_stop="9"),
        ],
    )
    stats = JobStats(
        wall_ms=1000.5,
        ttft_ms=100.25,
        decode_tps=2.2,
        e2e_tps=3.0,
        passes=2,
        drafted_tokens=9,
        accepted_tokens=1,
        forced_tokens=1,
        acceptance=1 / 9,
        tokens_per_pass=1.5,
        budgets={1: 1, 8: 1},
        phases=Phases(prefill=1.0, draft=2.0, verify=3.0, sample=4.0, commit=5.0, other=6.0),
        peak_memory_bytes=2**40,
        model="smollm2",
        drafter="suffix",
        verification="tree",
        acceptance_rule="ratio:theta=0.3",
        kernels="metal",
        chip="Apple M4",
        acceptance_collapsed_at=70,
        repetition=0.75,
        longest_repeat=12,
    )
    ledger.record(
        [
            RequestEvent(
                kind="finished", request_id=request, worker="mac-1", attempt=1, at=1.0, result=result, stats=stats
            )
        ]
    )
    row = ledger.request(request)
    assert row.result == result
    assert row.stats == stats


def test_a_token_that_stopped_is_told_from_a_string_that_did(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    ledger.record([finished(f"{batch.id}-0", matched_stop=2), finished(f"{batch.id}-1", matched_stop="2")])
    stops = [row.result.matched_stop for row in ledger.results(batch.id) if row.result]
    assert stops == [2, "2"]
    with sqlite3.connect(ledger.path) as database:
        columns = database.execute(
            "SELECT matched_stop, matched_stop_token FROM results ORDER BY request_id"
        ).fetchall()
    assert columns == [(None, 2), ("2", None)]


def test_controls_are_kept_byte_for_byte_and_lone_surrogates_replaced(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    every_control = "".join(map(chr, range(32))) + "\x7f\x80\u0085"
    event = finished(f"{batch.id}-1")
    assert event.result is not None
    broken = event.result.model_copy(update={"text": "a\ud83d b\udc00\U0001f34f"})
    ledger.record([finished(f"{batch.id}-0", text=every_control), event.model_copy(update={"result": broken})])
    with sqlite3.connect(ledger.path) as database:
        stored = database.execute("SELECT CAST(text AS BLOB) FROM results ORDER BY request_id").fetchall()
    assert stored == [(every_control.encode(),), ("a\ufffd b\ufffd\U0001f34f".encode(),)]
    assert text_of(ledger, f"{batch.id}-0") == every_control


def test_the_first_result_wins_and_a_later_one_is_history(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    first = finished(request, worker="mac-1", at=10.0, text="first")
    second = finished(request, worker="mac-2", attempt=2, at=11.0, text="second")
    assert ledger.record([first]) == [request]
    assert ledger.record([second, refused(request, worker="mac-3", attempt=3, at=12.0)]) == []
    row = ledger.request(request)
    assert (row.state, row.worker, row.attempts, row.finished_at) == (RequestState.COMPLETED, "mac-1", 1, 10.0)
    assert text_of(ledger, request) == "first"
    assert kinds(ledger, request) == [("finished", "mac-1", 1), ("late", "mac-2", 2), ("late", "mac-3", 3)]


def test_two_results_in_one_reading(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    events = [finished(request, worker="mac-1", text="first"), finished(request, worker="mac-2", text="second")]
    assert ledger.record(events) == [request]
    assert text_of(ledger, request) == "first"


def test_events_that_come_twice_count_once(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    events = [started(request), handed_back(request), started(request, worker="mac-2", at=120.0)]
    ledger.record(events)
    ledger.record(events)
    assert ledger.request(request).worker == "mac-2"
    assert ledger.request(request).state is RequestState.RUNNING
    done = finished(request, worker="mac-2")
    assert ledger.record([done, done]) == [request]
    assert ledger.record([*events, done]) == []
    assert [kind for kind, *_ in kinds(ledger, request)] == ["started", "handed_back", "started", "finished"]


def test_a_late_result_that_comes_twice_is_one_late_event(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    late = finished(request, worker="mac-2", at=300.0)
    ledger.record([finished(request), late])
    ledger.record([late])
    assert [kind for kind, *_ in kinds(ledger, request)] == ["finished", "late"]


def test_a_request_that_is_handed_back_waits_again(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([started(request), handed_back(request)])
    row = ledger.request(request)
    assert (row.state, row.worker, row.started_at, row.attempts) == (RequestState.QUEUED, None, None, 1)


def test_only_the_worker_that_runs_a_request_hands_it_back(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([started(request), started(request, worker="mac-2", attempt=2, at=150.0)])
    ledger.record([handed_back(request, worker="mac-1", attempt=1, at=151.0)])
    row = ledger.request(request)
    assert (row.state, row.worker, row.attempts) == (RequestState.RUNNING, "mac-2", 2)


def test_an_older_attempt_does_not_start_over_a_newer_one(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([started(request, worker="mac-2", attempt=2, at=150.0), started(request, worker="mac-1", attempt=1)])
    row = ledger.request(request)
    assert (row.worker, row.attempts, row.started_at) == ("mac-2", 2, 150.0)


def test_attempts_may_start_again_from_one_when_redis_lost_its_count(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([started(request, attempt=2)])
    ledger.requeued([request])
    assert ledger.request(request).state is RequestState.QUEUED
    ledger.record([started(request, worker="mac-3", attempt=1, at=400.0)])
    row = ledger.request(request)
    assert (row.state, row.worker, row.attempts) == (RequestState.RUNNING, "mac-3", 1)


def test_the_result_of_a_worker_given_up_for_dead_counts_when_it_is_first(ledger: Ledger, enter: Enter) -> None:
    """Its start is its own, not that of the attempt that runs now: else it would have finished before it began."""
    request = f"{enter(1).id}-0"
    ledger.record([started(request, at=100.0), started(request, worker="mac-2", attempt=2, at=500.0)])
    ledger.record([finished(request, worker="mac-1", attempt=1, at=460.0, **measured(1, 2, wall=359_000, ttft=10))])
    row = ledger.request(request)
    assert (row.worker, row.attempts, row.started_at, row.finished_at) == ("mac-1", 1, 101.0, 460.0)


def test_a_start_that_comes_after_the_result_changes_nothing(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([finished(request), started(request), handed_back(request)])
    assert ledger.request(request).state is RequestState.COMPLETED


def test_events_of_unknown_requests_are_logged_and_dropped(
    ledger: Ledger, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    request = f"{enter(1).id}-0"
    odd = [started("batch_other-0"), finished("batch_other-0"), handed_back("\udc80\n"), started("")]
    with caplog.at_level(logging.WARNING, "cidermill.ledger"):
        assert ledger.record([*odd, finished(request)]) == [request]
    assert "finished of 'batch_other-0' is dropped: no such request in this ledger" in caplog.text
    assert r"handed_back of '\udc80\n' is dropped" in caplog.text


def test_a_deleted_batch_is_no_obstacle(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    ledger.record([started(f"{batch.id}-0"), finished(f"{batch.id}-0")])
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM batches")
        assert connection.exec_driver_sql("SELECT count(*) FROM results").scalar() == 0
    assert ledger.record([finished(f"{batch.id}-0"), finished(f"{batch.id}-1")]) == []


def test_a_result_counts_for_the_request_of_its_event(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    event = finished(f"{batch.id}-0").model_copy(update={"request_id": f"{batch.id}-1"})
    assert ledger.record([event]) == [f"{batch.id}-1"]
    assert text_of(ledger, f"{batch.id}-0") is None


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        (measured(2**63, 1, wall=1.0, ttft=None), "prompt_tokens is 9223372036854775808"),
        (measured(1, 1, wall=float("nan"), ttft=None), "wall_ms is nan"),
        (measured(1, 1, wall=1.0, ttft=None, e2e_tps=float("inf")), "e2e_tps is inf"),
        (measured(1, 2**40 + 1, wall=1.0, ttft=None), "completion_tokens is 1099511627777"),
        (measured(1, 1, wall=1.0, ttft=None, drafted_tokens=-1), "drafted_tokens is -1"),
        (measured(1, 1, wall=1.0, ttft=None, passes=2**62), "passes is 4611686018427387904"),
        (measured(1, 1, wall=1.7e308, ttft=None), "wall_ms is 1.7e+308"),
        (measured(1, 1, wall=1.0, ttft=-1.7e308), "ttft_ms is -1.7e+308"),
    ],
)
def test_a_result_that_sqlite_cannot_hold_fails_its_request_alone(
    ledger: Ledger, enter: Enter, numbers: dict[str, object], named: str
) -> None:
    batch = enter(2)
    ledger.record([finished(f"{batch.id}-0", worker="mac-9", **numbers), finished(f"{batch.id}-1")])
    bad, good = ledger.results(batch.id)
    assert (bad.state, good.state) == (RequestState.FAILED, RequestState.COMPLETED)
    assert bad.result is not None
    assert bad.result.error is not None
    assert bad.result.error.code == "invalid_result"
    assert named in bad.result.error.message
    assert "mac-9" in bad.result.error.message


def test_the_largest_numbers_that_are_taken_add_up(ledger: Ledger, enter: Enter) -> None:
    batch = enter(3)
    numbers = measured(2**40, 2**40, wall=1e12, ttft=0.0, passes=2**40)
    for index in range(3):
        assert ledger.record([finished(f"{batch.id}-{index}", **numbers)]) == [f"{batch.id}-{index}"]
    stats = ledger.stats(batch.id)
    assert (stats.completion_tokens, stats.prompt_tokens, stats.passes) == (3 * 2**40, 3 * 2**40, 3 * 2**40)
    assert stats.decode_tps == (2**40 - 1) / 1e9


def test_an_event_that_sqlite_cannot_hold_is_dropped_alone(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    times = (float("nan"), -1.0, 1.7e308)
    odd = [*(started(f"{batch.id}-0", at=at) for at in times), started(f"{batch.id}-0", attempt=2**63)]
    assert ledger.record([*odd, finished(f"{batch.id}-1")]) == [f"{batch.id}-1"]
    assert ledger.request(f"{batch.id}-0").state is RequestState.QUEUED


def test_giving_up_is_final(ledger: Ledger, enter: Enter) -> None:
    batch = enter(1)
    request = f"{batch.id}-0"
    ledger.record([started(request, attempt=2)])
    assert ledger.fail(request, POISON, worker="mac-1")
    assert not ledger.fail(request, POISON)
    row = ledger.request(request)
    assert row.state is RequestState.FAILED
    assert row.result is not None
    assert row.result.error == POISON
    assert ledger.batch(batch.id).state is BatchState.COMPLETED
    assert ledger.record([finished(request, attempt=2)]) == []
    assert kinds(ledger, request) == [("started", "mac-1", 2), ("failed", "mac-1", 2), ("late", "mac-1", 2)]


def test_giving_up_what_is_finished_or_unknown_changes_nothing(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([finished(request)])
    assert not ledger.fail(request, POISON)
    assert not ledger.fail("batch_other-0", POISON)
    assert ledger.request(request).state is RequestState.COMPLETED


def test_cancelling_closes_what_is_open_and_keeps_what_is_done(ledger: Ledger, enter: Enter) -> None:
    batch = enter(4)
    ids = [f"{batch.id}-{index}" for index in range(4)]
    ledger.record([finished(ids[1]), refused(ids[2]), started(ids[3], attempt=2)])
    assert ledger.cancel(batch.id) == [ids[0], ids[3]]
    after = ledger.batch(batch.id)
    assert after.counts == RequestCounts(completed=1, failed=1, cancelled=2)
    assert after.state is BatchState.CANCELLED
    assert after.finished_at is not None
    assert kinds(ledger, ids[3]) == [("started", "mac-1", 2), ("cancelled", "mac-1", 2)]
    assert kinds(ledger, ids[0]) == [("cancelled", "", 0)]

    assert ledger.record([finished(ids[3], attempt=2, finish_reason="cancelled")]) == []
    assert ledger.cancel(batch.id) == []
    assert ledger.batch(batch.id) == after


def test_cancelling_a_complete_batch_changes_nothing(ledger: Ledger, enter: Enter) -> None:
    batch = enter(1)
    ledger.record([finished(f"{batch.id}-0")])
    before = ledger.batch(batch.id)
    assert ledger.cancel(batch.id) == []
    assert ledger.batch(batch.id) == before


def test_queueing_again_touches_running_requests_alone(ledger: Ledger, enter: Enter) -> None:
    batch = enter(3)
    ids = [f"{batch.id}-{index}" for index in range(3)]
    ledger.record([started(ids[1]), finished(ids[2])])
    ledger.requeued(ids)
    assert ledger.batch(batch.id).counts == RequestCounts(queued=2, completed=1)
    assert kinds(ledger, ids[0]) == []
    assert kinds(ledger, ids[1]) == [("started", "mac-1", 1), ("requeued", "mac-1", 1)]
