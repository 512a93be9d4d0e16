"""The rules that every history keeps, each a function from a history to its violations; and the times of hand-over."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from statistics import median

from tests.history.history import History, Note

FINAL = frozenset({"completed", "failed", "cancelled", "expired"})
DECISIONS = frozenset({"finished", "failed", "cancelled", "expired"})
RECORDS = "recorded"


@dataclass(frozen=True)
class Violation:
    rule: str
    request_id: str
    says: str


def check(history: History) -> list[Violation]:
    """All violations of all rules."""
    return [violation for rule in RULES for violation in rule(history)]


def nothing_is_lost(history: History) -> Iterator[Violation]:
    """Every accepted request is in one final state, and the ledger has no others."""
    for request_id in history.accepted.keys() - history.rows.keys():
        yield Violation("lost", request_id, "accepted, and not in the ledger")
    for request_id, row in history.rows.items():
        if request_id not in history.accepted:
            yield Violation("lost", request_id, "in the ledger, and never accepted")
        if row.state not in FINAL:
            yield Violation("lost", request_id, f"still {row.state}")


def decided_once(history: History) -> Iterator[Violation]:
    """A request becomes final by one event, has one result (none where it was cancelled or expired), and keeps it."""
    for row in history.rows.values():
        decisions = [event for event in row.events if event[0] in DECISIONS]
        if row.state in FINAL and len(decisions) != 1:
            yield Violation("decided_once", row.request_id, f"{len(decisions)} decisions: {decisions}")
        wanted = {"cancelled": (0, 1), "expired": (0,)}.get(row.state, (1,))
        if row.state in FINAL and row.results not in wanted:
            yield Violation("decided_once", row.request_id, f"{row.results} results")
        for kind, worker, attempt in decisions:
            if kind == "finished" and (worker, attempt) != (row.worker, row.attempt):
                says = f"decided by {worker}/{attempt}, holds the result of {row.worker}/{row.attempt}"
                yield Violation("decided_once", row.request_id, says)


def counts_add_up(history: History) -> Iterator[Violation]:
    """The counts of a batch are those of its requests, and add up to its total; it is closed when they are."""
    for batch in history.batches.values():
        ids = [one.request_id for one in history.accepted.values() if one.batch_id == batch.batch_id]
        states = Counter(history.rows[request_id].state for request_id in ids if request_id in history.rows)
        counted = {state: count for state, count in batch.counts.items() if count}
        if counted != dict(states) or sum(counted.values()) != batch.total or batch.total != len(ids):
            says = f"counts {counted} of {batch.total}; requests {dict(states)} of {len(ids)}"
            yield Violation("counts", batch.batch_id, says)
        if states.keys() <= FINAL and batch.state not in FINAL:
            yield Violation("counts", batch.batch_id, f"all requests are final, the batch is {batch.state}")
        if batch.state in FINAL - {"cancelled"} and ("expired" in states) is not (batch.state == "expired"):
            yield Violation("counts", batch.batch_id, f"it is {batch.state} with requests {dict(states)}")


def nothing_recorded_runs_again(history: History) -> Iterator[Violation]:
    """No generation starts after the request's result was recorded.

    A worker asks first whether anybody wants it, and what is recorded between question and start is nobody's fault: the
    question counts, unless the worker then waited for longer than one fault explains.
    """
    recorded: dict[str, float] = {}
    for note in history.of_kind(RECORDS):
        assert note.request_id is not None
        recorded.setdefault(note.request_id, note.at)
    asked: dict[tuple[str, str], float] = {}
    for note in history.of_kind("asks", "start"):
        assert note.request_id is not None
        if note.kind == "asks":
            asked[note.process, note.request_id] = note.at
            continue
        question = asked.pop((note.process, note.request_id), -inf)  # one question is good for one start
        at = question if note.at - question <= history.longest_fault else note.at
        if at > recorded.get(note.request_id, at):
            late = at - recorded[note.request_id]
            says = f"{note.process} started it {late:.3f} s after its result was recorded"
            yield Violation("ran_again", note.request_id, says)


def answers_are_the_requests_own(history: History) -> Iterator[Violation]:
    """A completed request has its own answer, from a worker that says it has generated it."""
    generated = {(note.process, note.request_id) for note in history.of_kind("end")}
    for row in history.rows.values():
        wanted = history.accepted.get(row.request_id)
        if wanted is None or row.state != "completed":
            continue
        if row.text != wanted.text:
            yield Violation("attribution", row.request_id, f"answer {row.text!r} and not {wanted.text!r}")
        if (row.worker, row.request_id) not in generated:
            yield Violation("attribution", row.request_id, f"{row.worker} never came to its end")


def failures_have_their_cause(history: History) -> Iterator[Violation]:
    """Poison is set aside, with the names of two workers that fell silent on it; what is late fails as such.

    What no machine has room for fails after two attempts.
    """
    silent = {note.process for note in history.of_kind("kill", "stop")}
    for row in history.rows.values():
        wanted = history.accepted.get(row.request_id)
        if wanted is None or row.state not in FINAL or row.state in ("cancelled", "expired"):
            continue
        if row.error_code == "worker_lost":
            names = (row.error_message or "").rpartition(": ")[2].split(", ")
            innocent = [name for name in names if name not in silent]
            if len(set(names)) < 2 or innocent:
                yield Violation("cause", row.request_id, f"set aside ({row.error_message}); alive: {innocent}")
        elif wanted.deadly:
            yield Violation("cause", row.request_id, f"it kills its workers and is {row.state} ({row.error_code})")
        elif wanted.failing:
            starts = sum(note.request_id == row.request_id for note in history.of_kind("start"))
            if row.error_code != "out_of_memory" or starts < 2:
                says = f"memory runs out on it, and it is {row.state} ({row.error_code}) after {starts} attempts"
                yield Violation("cause", row.request_id, says)
        elif (row.error_code == "request_timeout") is not wanted.overdue or row.error_code not in (
            None,
            "request_timeout",
        ):
            yield Violation("cause", row.request_id, f"it is {row.state}: {row.error_code}: {row.error_message}")


def deadlines_hold(history: History) -> Iterator[Violation]:
    """What has a deadline is final soon after it, and does not start after it; nothing expires before, or without one.

    Faults can keep the recorder from its work, again and again.
    """
    for row in history.rows.values():
        deadline = history.accepted[row.request_id].expires_at if row.request_id in history.accepted else None
        if row.state == "expired" and (deadline is None or row.finished_at is None or row.finished_at < deadline):
            yield Violation("deadline", row.request_id, f"expired at {row.finished_at}, its deadline is {deadline}")
        elif deadline is not None and (row.finished_at or inf) > deadline + 10 * history.longest_fault:
            yield Violation("deadline", row.request_id, f"open until {row.finished_at}, its deadline is {deadline}")
    dark = outages(history)
    for note in history.of_kind("start"):
        wanted = history.accepted.get(note.request_id or "")
        deadline = None if wanted is None else wanted.expires_at
        if (
            deadline is not None
            and note.at > deadline + PROMPT_SECONDS
            and not _hindered(history, dark, note, deadline)
        ):
            says = f"{note.process} started it at {note.at}, its deadline is {deadline}"
            yield Violation("deadline", note.request_id or "", says)


PROMPT_SECONDS = 1.0
"""From a worker's look at a deadline to its note of the start, on a busy machine."""


def _hindered(history: History, dark: list[tuple[float, float]], start: Note, deadline: float) -> bool:
    """Whether a fault came between the clock's answer, to the producer or to this worker, and what was made of it."""
    since = deadline - 2 * history.longest_fault
    stopped = any(note.process == start.process and since < note.at < start.at for note in history.of_kind("stop"))
    return stopped or any(begin < start.at and since < end for begin, end in dark)


RULES = (
    nothing_is_lost,
    decided_once,
    counts_add_up,
    nothing_recorded_runs_again,
    answers_are_the_requests_own,
    failures_have_their_cause,
    deadlines_hold,
)


@dataclass(frozen=True)
class Handover:
    """seconds: from a worker's SIGKILL to the start of its request on another. shadowed: by an outage in between."""

    request_id: str
    phase: str
    seconds: float
    shadowed: bool


AFTERMATH_SECONDS = 30.0
"""How long after an outage a kill may still suffer from it: no lease is ended soon after a start of the server."""


def handovers(history: History) -> list[Handover]:
    """For each kill whose request had to run elsewhere and did; of several before that start, the last one counts."""
    runs = history.of_kind("start", "kill")
    dark = outages(history)
    found = []
    for kill in history.of_kind("kill"):
        after = [n for n in runs if n.at > kill.at and n.request_id == kill.request_id and n.process != kill.process]
        if kill.request_id is None or not after or after[0].kind == "kill":
            continue
        start = after[0].at
        shadowed = any(begin < start and kill.at < end + AFTERMATH_SECONDS for begin, end in dark)
        found.append(Handover(kill.request_id, kill.phase or "", start - kill.at, shadowed))
    return found


def outages(history: History) -> list[tuple[float, float]]:
    """When the server did not answer, and when all workers were stopped: from, to (infinity: to the end)."""
    found: list[tuple[float, float]] = []
    since: dict[str, float] = {}
    for note in history.of_kind("outage", "outage_over"):
        if note.kind == "outage":
            since.setdefault(note.process, note.at)
        elif note.process in since:
            found.append((since.pop(note.process), note.at))
    return [*found, *((begin, inf) for begin in since.values())]


def slow(found: list[Handover], limit_seconds: float) -> list[Handover]:
    """Those that took longer than that, and that no outage explains."""
    return [one for one in found if one.seconds > limit_seconds and not one.shadowed]


def summary(found: list[Handover]) -> dict[str, object]:
    """Count, median and maximum, over all and over those that no outage delayed, and per phase."""
    clear = [one for one in found if not one.shadowed]
    phases = sorted({one.phase for one in found})
    return {
        "all": _figures(found),
        "without_outages": _figures(clear),
        "by_phase": {phase: _figures([one for one in found if one.phase == phase]) for phase in phases},
    }


def _figures(found: list[Handover]) -> dict[str, float]:
    seconds = [one.seconds for one in found]
    if not seconds:
        return {"count": 0}
    return {"count": len(seconds), "median_s": round(median(seconds), 3), "max_s": round(max(seconds), 3)}
