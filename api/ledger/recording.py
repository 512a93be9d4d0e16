"""Events and decisions into the tables. Each function works within a transaction that holds the write lock."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, literal, select, update

from api.ledger import counts, tallies
from api.ledger.batches import settle
from api.ledger.columns import LATEST_SECONDS, SQLITE_INTEGERS
from api.ledger.moves import EXPIRED, FINISHED, LATE, Standing
from api.ledger.rows import event_row, failed_row
from api.ledger.tables import BATCHES, EVENTS, OPEN, REQUESTS, RESULTS
from api.schemas import GenerationResult, RequestError, RequestEvent
from api.states import OPEN_BATCH_STATES, OPEN_REQUEST_STATES, BatchState, RequestState, may_move
from api.transitions import about

logger = logging.getLogger("cidermill.ledger")

CHUNK = 500
DECISIONS = (FINISHED, EXPIRED)
_TOLD = {FINISHED: "recorded", LATE: LATE, EXPIRED: EXPIRED}
NOT_IN_REDIS = "not_in_redis"
"""Why a request was requeued: the ledger showed it as running, and Redis did not know it."""

Row = dict[str, Any]
Key = tuple[str, str, str, int, float]


def record_events(connection: Connection, events: Sequence[RequestEvent]) -> list[Row]:
    """Enter events in order, each of them once however often it is delivered; returns the rows of those that are new.

    Those of DECISIONS among them have made their requests final.
    """
    request_ids = list(dict.fromkeys(event.request_id for event in events))
    standings = _standings(connection, request_ids)
    heard = _heard(connection, request_ids)
    notes: list[Row] = []
    results: list[Row] = []
    for event in filter(_storable, events):
        standing = standings.get(event.request_id)
        if standing is None:
            # Whoever writes to Redis chooses the id: it goes to the log in ASCII, control characters escaped.
            logger.warning("%s of %a is dropped: no such request in this ledger", event.kind, event.request_id)
        elif heard.isdisjoint(_keys(event)):
            kind, result = _apply(standing, event)
            results += [] if result is None else [result]
            notes.append(_note(event.request_id, kind, event.worker, event.attempt, event.at, _detail(event, result)))
            heard.add(_key(event, kind))
    _write(connection, standings, results, notes)
    decided = [note["request_id"] for note in notes if note["kind"] in DECISIONS]
    for batch_id in dict.fromkeys(standings[request_id].batch_id for request_id in decided):
        settle(connection, batch_id, time.time())
    return notes


def fail_request(connection: Connection, request_id: str, error: RequestError, worker: str | None) -> bool:
    """Give a request up; False when it is final already, or not in this ledger."""
    standings, now = _standings(connection, [request_id]), time.time()
    standing = standings.get(request_id)
    if standing is None:
        logger.warning("%s cannot be given up: no such request in this ledger", request_id)
    if standing is None or not standing.close(RequestState.FAILED, now):
        return False
    note = _note(request_id, "failed", worker or "", standing.attempts, now, error.code)
    _write(connection, standings, [failed_row(request_id, error, worker)], [note])
    settle(connection, standing.batch_id, now)
    return True


def tell(notes: Iterable[Row]) -> None:
    """Log what has become final by a worker's word, or came too late; to be called after the commit."""
    if not logger.isEnabledFor(logging.INFO):
        return
    for note in notes:
        name = _TOLD.get(note["kind"])
        if name is not None:
            facts = {fact: note.get(fact) for fact in ("worker", "attempt", "detail")}
            logger.info(name, extra=about(note["request_id"], **facts))


def begin_cancelling(connection: Connection, batch_id: str) -> None:
    """Show a batch of which something is open as cancelling; one that is final already stays as it is."""
    is_open = BATCHES.c.state.in_([state.value for state in OPEN_BATCH_STATES])
    cancelling = update(BATCHES).where(BATCHES.c.id == batch_id, is_open)
    connection.execute(cancelling.values(state=BatchState.CANCELLING.value))


def close_some(
    connection: Connection, batch_id: str, final: RequestState, spared: Collection[str] = frozenset()
) -> list[str]:
    """Cancel, or let expire, the first CHUNK requests that are open of a batch, without those spared; returns them.

    After the last of them the batch is closed.
    """
    assert final in (RequestState.CANCELLED, RequestState.EXPIRED)
    assert {state for state in RequestState if may_move(state, final)} == OPEN_REQUEST_STATES
    query = select(REQUESTS.c.id).where(REQUESTS.c.batch_id == batch_id, OPEN).order_by(REQUESTS.c.idx)
    found = connection.execute(query.limit(CHUNK + len(spared))).scalars()
    closed = [request_id for request_id in found if request_id not in spared][:CHUNK]
    now = time.time()
    if closed:
        chosen = REQUESTS.c.id.in_(closed)
        _note_each(connection, chosen, final.value, now)
        counts.move_all(connection, chosen, final, finished_at=now)
    settle(connection, batch_id, now)
    return closed


def requeue_running(connection: Connection, request_ids: Iterable[str]) -> set[str]:
    """Of these, show the running ones as queued: whoever ran them is gone. Returns those that are open."""
    sources = [RequestState.RUNNING.value]
    assert may_move(RequestState.RUNNING, RequestState.QUEUED)
    still_open: set[str] = set()
    for chunk in _chunks(list(request_ids)):
        lost = REQUESTS.c.id.in_(chunk) & REQUESTS.c.state.in_(sources)
        _note_each(connection, lost, "requeued", time.time(), NOT_IN_REDIS)
        counts.move_all(connection, lost, RequestState.QUEUED, worker=None, started_at=None)
        waiting = REQUESTS.c.id.in_(chunk) & (REQUESTS.c.state == RequestState.QUEUED.value)
        still_open.update(connection.scalars(select(REQUESTS.c.id).where(waiting)))
    return still_open


def known_requests(connection: Connection, request_ids: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for chunk in _chunks(sorted(set(request_ids))):
        found.update(connection.scalars(select(REQUESTS.c.id).where(REQUESTS.c.id.in_(chunk))))
    return found


def _apply(standing: Standing, event: RequestEvent) -> tuple[str, Row | None]:
    """Move the request. Returns the kind under which the event is remembered, and the row of a first result."""
    if event.kind == "started":
        standing.start(event)
    elif event.kind in ("handed_back", "requeued"):
        standing.hand_back(event)
    elif event.kind == "expired":
        return (EXPIRED if standing.finish(event, RequestState.EXPIRED) else LATE), None
    else:
        assert event.result is not None
        row = event_row(event)
        first = standing.finish(event, _final_state(row, event.result))
        return (FINISHED, row) if first else (LATE, None)
    return event.kind, None


def _final_state(row: Row, result: GenerationResult) -> RequestState:
    if row["error_code"] is not None:
        return RequestState.FAILED
    return RequestState.CANCELLED if result.cancelled else RequestState.COMPLETED


def _storable(event: RequestEvent) -> bool:
    if 0 <= event.at <= LATEST_SECONDS and event.attempt in SQLITE_INTEGERS:
        return True
    logger.error("%s of %a is dropped: at %s, attempt %s", event.kind, event.request_id, event.at, event.attempt)
    return False


def _keys(event: RequestEvent) -> set[Key]:
    """What the event may be remembered as: an end can have come first, or late."""
    kinds = (event.kind, LATE) if event.final else (event.kind,)
    return {_key(event, kind) for kind in kinds}


def _key(event: RequestEvent, kind: str) -> Key:
    return (event.request_id, kind, event.worker, event.attempt, event.at)


def _detail(event: RequestEvent, row: Row | None) -> str | None:
    """row: of the first result, which may have been refused."""
    if row is not None:
        detail: str | None = row["error_code"] or row["finish_reason"]
        return detail
    if event.result is None:
        return event.reason
    return event.result.error.code if event.result.error else event.result.finish_reason


def _note(request_id: str, kind: str, worker: str, attempt: int, at: float, detail: str | None) -> Row:
    return {
        "request_id": request_id,
        "kind": kind,
        "worker": worker,
        "attempt": attempt,
        "at": at,
        "detail": detail,
    }


def _note_each(connection: Connection, condition: Any, kind: str, at: float, detail: str | None = None) -> None:
    worker = func.coalesce(REQUESTS.c.worker, "")
    told = [literal(kind), worker, REQUESTS.c.attempts, literal(at), literal(detail)]
    noted = select(REQUESTS.c.id, *told).where(condition)
    names = ["request_id", "kind", "worker", "attempt", "at", "detail"]
    connection.execute(insert(EVENTS).from_select(names, noted.order_by(REQUESTS.c.idx)))


def _standings(connection: Connection, request_ids: Sequence[str]) -> dict[str, Standing]:
    """Of those that the ledger has."""
    c = REQUESTS.c
    found = {}
    for chunk in _chunks(request_ids):
        query = select(c.id, c.batch_id, c.state, c.attempts, c.worker, c.started_at).where(c.id.in_(chunk))
        for request_id, batch_id, state, attempts, worker, started_at in connection.execute(query):
            found[request_id] = Standing(batch_id, RequestState(state), attempts, worker, started_at)
    return found


def _heard(connection: Connection, request_ids: Sequence[str]) -> set[Key]:
    c = EVENTS.c
    heard: set[Key] = set()
    for chunk in _chunks(request_ids):
        query = select(c.request_id, c.kind, c.worker, c.attempt, c.at).where(c.request_id.in_(chunk))
        heard |= {(row[0], row[1], row[2], row[3], row[4]) for row in connection.execute(query)}
    return heard


def _write(
    connection: Connection, standings: Mapping[str, Standing], results: Sequence[Row], notes: Sequence[Row]
) -> None:
    counts.move_each(connection, standings)
    for statement, rows in ((insert(RESULTS), results), (insert(EVENTS), notes)):
        if rows:
            connection.execute(statement, rows)
    for chunk in _chunks([row["request_id"] for row in results]):
        tallies.add(connection, RESULTS.c.request_id.in_(chunk))


def _chunks(items: Sequence[str]) -> Iterable[Sequence[str]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
