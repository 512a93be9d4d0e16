"""Each rule finds the violation that is planted for it, and nothing else does; a clean history has none."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from tests.history.checker import Handover, Violation, check, handovers, outages, slow, summary
from tests.history.history import Accepted, BatchRow, History, Note, Row

B, BRIEF = "batch_A", "batch_B"
DONE, POISON, LATE, DROPPED, LARGE = (f"{B}-{index}" for index in range(5))
IN_TIME, MISSED = (f"{BRIEF}-{index}" for index in range(2))


def clean() -> History:
    """One answered after a hand-over, one that killed two workers, one that ran too long, one cancelled, and one that
    is too large for every machine.

    Of a batch with a deadline at 5, one answered and one expired.
    """
    lost = "the request was set aside: 2 workers died while running it: w1, w2"
    return History(
        accepted={
            DONE: Accepted(DONE, B, "answer"),
            POISON: Accepted(POISON, B, "never", deadly=True),
            LATE: Accepted(LATE, B, "too much", overdue=True),
            DROPPED: Accepted(DROPPED, B, "unwanted"),
            LARGE: Accepted(LARGE, B, "never", failing=True),
            IN_TIME: Accepted(IN_TIME, BRIEF, "quick", expires_at=5.0),
            MISSED: Accepted(MISSED, BRIEF, "slow", expires_at=5.0),
        },
        rows={
            DONE: Row(
                DONE,
                "completed",
                1,
                "answer",
                worker="w4",
                attempt=2,
                events=(("started", "w3", 1), ("finished", "w4", 2)),
            ),
            POISON: Row(POISON, "failed", 1, "", "worker_lost", lost, "w2", None, (("failed", "w2", 2),)),
            LATE: Row(LATE, "failed", 1, "", "request_timeout", "late", "w4", 1, (("finished", "w4", 1),)),
            DROPPED: Row(DROPPED, "cancelled", 0, events=(("cancelled", "", 0), ("late", "w4", 1))),
            LARGE: Row(LARGE, "failed", 1, "", "out_of_memory", "full", "w4", 2, (("finished", "w4", 2),)),
            IN_TIME: Row(
                IN_TIME,
                "completed",
                1,
                "quick",
                worker="w5",
                attempt=1,
                events=(("finished", "w5", 1),),
                finished_at=5.5,
            ),
            MISSED: Row(MISSED, "expired", 0, events=(("expired", "w5", 1), ("late", "w5", 1)), finished_at=6.0),
        },
        batches={
            B: BatchRow(B, "completed", 5, {"completed": 1, "failed": 3, "cancelled": 1, "queued": 0}),
            BRIEF: BatchRow(BRIEF, "expired", 2, {"completed": 1, "expired": 1}),
        },
        notes=[
            Note(1.0, "start", "w1", POISON),
            Note(1.1, "kill", "w1", POISON, "poison"),
            Note(3.0, "start", "w2", POISON),
            Note(3.1, "kill", "w2", POISON, "poison"),
            Note(4.0, "start", "w3", DONE),
            Note(4.5, "kill", "w3", DONE, "generating"),
            Note(7.5, "start", "w4", DONE),
            Note(7.9, "end", "w4", DONE),
            Note(8.0, "recorded", "recorder-0", DONE),
            Note(8.2, "start", "w3", LARGE),
            Note(8.3, "start", "w4", LARGE),
            Note(4.9, "start", "w5", IN_TIME),
            Note(5.5, "end", "w5", IN_TIME),
            Note(5.9, "start", "w5", MISSED),
        ],
    )


def row(request_id: str, **changes: object) -> Callable[[History], None]:
    def plant(history: History) -> None:
        history.rows[request_id] = replace(history.rows[request_id], **changes)

    return plant


def note(*fields: object) -> Callable[[History], None]:
    return lambda history: history.notes.append(Note(*fields))  # type: ignore[arg-type]


def asked_and_started(asked_at: float, *started_at: float) -> Callable[[History], None]:
    """By w5, while the request runs on w4 and is recorded at 8."""

    def plant(history: History) -> None:
        history.notes += [Note(asked_at, "asks", "w5", DONE), *(Note(at, "start", "w5", DONE) for at in started_at)]
        history.notes.sort(key=lambda one: one.at)

    return plant


def batch(batch_id: str = B, **changes: object) -> Callable[[History], None]:
    def plant(history: History) -> None:
        history.batches[batch_id] = replace(history.batches[batch_id], **changes)

    return plant


def forget(*kinds: str) -> Callable[[History], None]:
    def plant(history: History) -> None:
        history.notes = [one for one in history.notes if one.kind not in kinds]

    return plant


def drop_start(request_id: str) -> Callable[[History], None]:
    def plant(history: History) -> None:
        first = next(one for one in history.notes if (one.kind, one.request_id) == ("start", request_id))
        history.notes.remove(first)

    return plant


def no_deadline(history: History) -> None:
    history.accepted[MISSED] = replace(history.accepted[MISSED], expires_at=None)


PLANTED: dict[str, tuple[Callable[[History], object], set[tuple[str, str]]]] = {
    "vanished": (lambda history: history.rows.pop(DONE), {("lost", DONE), ("counts", B)}),
    "still running": (row(DROPPED, state="running"), {("lost", DROPPED), ("counts", B)}),
    "never accepted": (lambda history: history.accepted.pop(LATE), {("lost", LATE), ("counts", B)}),
    "two results": (row(DONE, results=2), {("decided_once", DONE)}),
    "no result": (row(LATE, results=0), {("decided_once", LATE)}),
    "two decisions": (
        row(DROPPED, events=(("cancelled", "", 0), ("finished", None, None))),
        {("decided_once", DROPPED)},
    ),
    "a late result took over": (row(DONE, attempt=3), {("decided_once", DONE)}),
    "counts": (batch(counts={"completed": 2, "failed": 2}), {("counts", B)}),
    "total": (batch(total=6), {("counts", B)}),
    "open batch": (batch(state="in_progress"), {("counts", B)}),
    "ran again": (note(8.1, "start", "w5", DONE), {("ran_again", DONE)}),
    "ran again, and had asked": (asked_and_started(8.05, 8.1), {("ran_again", DONE)}),
    "ran again, and had asked long before": (asked_and_started(7.9, 11.0), {("ran_again", DONE)}),
    "recorded between question and start": (asked_and_started(7.9, 8.1), set()),
    "ran again, on one question": (asked_and_started(7.9, 7.95, 8.1), {("ran_again", DONE)}),
    "another's answer": (row(DONE, text="unwanted"), {("attribution", DONE)}),
    "never generated": (forget("end"), {("attribution", DONE), ("attribution", IN_TIME)}),
    "set aside for nothing": (forget("kill"), {("cause", POISON)}),
    "set aside after one": (row(POISON, error_message="1 worker died while running it: w1"), {("cause", POISON)}),
    "poison answered": (row(POISON, error_code=None), {("cause", POISON)}),
    "completed with an expired request": (batch(BRIEF, state="completed"), {("counts", BRIEF)}),
    "expired without an expired request": (batch(state="expired"), {("counts", B)}),
    "expired and completed": (
        row(MISSED, events=(("finished", None, None), ("expired", "", 1))),
        {("decided_once", MISSED)},
    ),
    "expired and answered": (row(MISSED, results=1), {("decided_once", MISSED)}),
    "expired before its deadline": (row(MISSED, finished_at=4.9), {("deadline", MISSED)}),
    "expired without a deadline": (no_deadline, {("deadline", MISSED)}),
    "open after its deadline": (row(MISSED, finished_at=35.1), {("deadline", MISSED)}),
    "answered long after its deadline": (row(IN_TIME, finished_at=35.1), {("deadline", IN_TIME)}),
    "started after its deadline": (note(6.1, "start", "w6", MISSED), {("deadline", MISSED)}),
    "too large and answered": (row(LARGE, error_code=None), {("cause", LARGE)}),
    "too large at the first try": (drop_start(LARGE), {("cause", LARGE)}),
    "damaged": (row(LATE, error_code="damaged_entry"), {("cause", LATE)}),
}


def test_a_clean_history_breaks_no_rule() -> None:
    assert check(clean()) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    plant, expected = PLANTED[name]
    history = clean()
    plant(history)
    assert {(violation.rule, violation.request_id) for violation in check(history)} == expected
    assert all(isinstance(violation, Violation) and violation.says for violation in check(history))


@pytest.mark.parametrize(
    "fault",
    [
        [Note(5.5, "stop", "w6")],
        [Note(4.0, "outage", "server"), Note(5.2, "outage_over", "server")],
    ],
)
def test_a_start_after_its_deadline_is_excused_by_a_fault_in_between(fault: list[Note]) -> None:
    history = clean()
    history.notes += [*fault, Note(7.0, "start", "w6", MISSED)]
    assert check(history) == []
    history.notes += [Note(7.1, "start", "w7", MISSED)]
    assert len(check(history)) == (1 if fault[0].kind == "stop" else 0)


def test_hand_over_is_counted_from_the_kill_to_the_start_elsewhere() -> None:
    history = clean()
    found = handovers(history)
    assert [(one.request_id, one.phase, one.shadowed) for one in found] == [
        (POISON, "poison", False),
        (DONE, "generating", False),
    ]
    assert [round(one.seconds, 6) for one in found] == [1.9, 3.0]
    assert summary(found)["all"] == {"count": 2, "median_s": 2.45, "max_s": 3.0}


def test_hand_over_in_the_shadow_of_an_outage_is_kept_apart() -> None:
    history = clean()
    history.notes.append(Note(5.0, "outage", "server"))
    assert [one.shadowed for one in handovers(history)] == [False, True]
    assert summary(handovers(history))["without_outages"] == {"count": 1, "median_s": 1.9, "max_s": 1.9}
    assert summary([Handover(DONE, "stored", 1.0, True)])["without_outages"] == {"count": 0}


def test_an_outage_lasts_until_the_same_is_back() -> None:
    history = History()
    history.notes += [
        Note(1.0, "outage", "server"),
        Note(2.0, "outage", "workers"),
        Note(3.0, "outage_over", "server"),
        Note(5.0, "outage_over", "workers"),
        Note(6.0, "outage", "server"),
    ]
    assert outages(history) == [(1.0, 3.0), (2.0, 5.0), (6.0, inf)]


@pytest.mark.parametrize(
    ("start", "outage", "found"),
    [
        (160.5, None, 1),
        (159.5, None, 0),
        (170.0, (60.0, 69.0), 1),  # over long before the kill
        (170.0, (60.0, 71.0), 0),
        (170.0, (150.0, 155.0), 0),
        (170.0, (171.0, 175.0), 1),  # it had started by then
    ],
)
def test_a_slow_hand_over_needs_an_outage_that_explains_it(
    start: float, outage: tuple[float, float] | None, found: int
) -> None:
    history = History()
    history.notes += [Note(90.0, "start", "w1", DONE), Note(100.0, "kill", "w1", DONE, "generating")]
    history.notes.append(Note(start, "start", "w2", DONE))
    if outage is not None:
        history.notes += [Note(outage[0], "outage", "server"), Note(outage[1], "outage_over", "server")]
    assert len(slow(handovers(history), 60.0)) == found


def test_of_kills_in_a_row_the_last_one_counts() -> None:
    history = History()
    history.notes += [
        Note(1.0, "kill", "w1", DONE, "generating"),
        Note(46.0, "kill", "w2", DONE, "dequeued"),
        Note(58.0, "start", "w3", DONE),
    ]
    assert handovers(history) == [Handover(DONE, "dequeued", 12.0, False)]
