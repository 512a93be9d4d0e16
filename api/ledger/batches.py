"""Batches in the ledger: how one is entered, found, counted and closed. Each function works within a transaction.

A batch is entered in many transactions, so that a recorder gets its turn between them. Until the last of them it is
`validating`, and nobody takes it for a batch that could be run.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, or_, select, update

from api.dataset.request_line import InputLine, LineError, default_custom_id
from api.errors import LedgerError, NotFoundError
from api.identity import BATCH_PREFIX, request_id
from api.ledger import counts, tallies
from api.ledger.records import RunningBatch, batch_of_row
from api.ledger.rows import failed_row
from api.ledger.tables import BATCHES, EVENTS, REQUESTS, RESULTS
from api.schemas import Batch, RequestError
from api.states import OPEN_BATCH_STATES, OPEN_REQUEST_STATES, BatchState, RequestState

CHUNK = 1000
"""Requests entered or removed in one transaction: some 2 MB of prompts, a few hundredths of a second."""
ABANDONED_SECONDS = 600.0
"""How long after its last request a batch that is being entered counts as left behind by a process that died."""
LATEST = "latest"
_ENTERED_AND_OPEN = (BatchState.IN_PROGRESS.value, BatchState.CANCELLING.value)

Row = dict[str, Any]


def begin_batch(connection: Connection, batch: Row) -> None:
    """Write a batch of `batches` columns, whose requests are to follow."""
    connection.execute(insert(BATCHES), {**batch, "state": BatchState.VALIDATING.value, "created_at": time.time()})


def enter_requests(
    connection: Connection, batch_id: str, numbered: Sequence[tuple[int, InputLine | LineError]]
) -> None:
    """Write some requests of a batch that is being entered; a LineError becomes one that has failed already.

    Raises LedgerError when the batch was cancelled, or removed, in the meantime.
    """
    _check_entering(connection, batch_id)
    now = time.time()
    counts.enter(connection, [_request_row(batch_id, index, line, now) for index, line in numbered])
    failures = [_failure(batch_id, index, line) for index, line in numbered if isinstance(line, LineError)]
    if failures:
        connection.execute(insert(RESULTS), failures)
        connection.execute(insert(EVENTS), [_refusal(failure, now) for failure in failures])
        tallies.add(connection, RESULTS.c.request_id.in_([row["request_id"] for row in failures]))


def end_of_entry(connection: Connection, batch_id: str) -> None:
    """All requests are there: the batch can be run. Raises LedgerError as `enter_requests` does."""
    _check_entering(connection, batch_id)
    running = update(BATCHES).where(BATCHES.c.id == batch_id).values(state=BatchState.IN_PROGRESS.value)
    connection.execute(running)
    settle(connection, batch_id, time.time())


def remove_some(connection: Connection, batch_id: str) -> bool:
    """Remove up to CHUNK requests of a batch, and the batch itself after the last; whether anything is left."""
    some = connection.scalars(select(REQUESTS.c.id).where(REQUESTS.c.batch_id == batch_id).limit(CHUNK)).all()
    if some:
        counts.remove(connection, some)
        return True
    connection.execute(delete(BATCHES).where(BATCHES.c.id == batch_id))
    return False


def abandoned_batches(connection: Connection) -> list[str]:
    """Batches whose submission died before it had entered all of their requests."""
    last = select(REQUESTS.c.queued_at).where(REQUESTS.c.batch_id == BATCHES.c.id).order_by(REQUESTS.c.idx.desc())
    entered_at = func.coalesce(last.limit(1).scalar_subquery(), BATCHES.c.created_at)
    entering = BATCHES.c.state == BatchState.VALIDATING.value
    old = entered_at < time.time() - ABANDONED_SECONDS
    return list(connection.scalars(select(BATCHES.c.id).where(entering, old)))


def _check_entering(connection: Connection, batch_id: str) -> None:
    state = connection.scalar(select(BATCHES.c.state).where(BATCHES.c.id == batch_id))
    if state != BatchState.VALIDATING.value:
        found = "was removed" if state is None else f"is {state}"
        raise LedgerError(f"batch {batch_id} {found} while its requests were entered; submit it again")


def _request_row(batch_id: str, index: int, line: InputLine | LineError, now: float) -> Row:
    failed = isinstance(line, LineError)
    return {
        "id": request_id(batch_id, index),
        "batch_id": batch_id,
        "idx": index,
        "custom_id": default_custom_id(line.line) if line.custom_id is None else line.custom_id,
        "line": line.line,
        "state": (RequestState.FAILED if failed else RequestState.QUEUED).value,
        "attempts": 0,
        "body": None if isinstance(line, LineError) else line.body.model_dump_json(exclude_defaults=True),
        "queued_at": now,
        "finished_at": now if failed else None,
    }


def _failure(batch_id: str, index: int, line: LineError) -> Row:
    error = RequestError(code=line.code, message=f"line {line.line}: {line.message}")
    return failed_row(request_id(batch_id, index), error, None)


def _refusal(failure: Row, now: float) -> Row:
    """The event of a request that failed before it was queued."""
    told = {"kind": "failed", "worker": "", "attempt": 0, "at": now, "detail": failure["error_code"]}
    return {"request_id": failure["request_id"], **told}


def settle(connection: Connection, batch_id: str, at: float) -> None:
    """Close an open batch of which no request is open.

    It is cancelled when it was cancelling, else expired when any of its requests is, else completed.
    """
    batch = connection.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()
    state, of = BatchState(batch.state), counts.counts_of(batch)
    if state not in OPEN_BATCH_STATES or any(of[request_state] for request_state in OPEN_REQUEST_STATES):
        return
    final = BatchState.EXPIRED if of[RequestState.EXPIRED] else BatchState.COMPLETED
    final = BatchState.CANCELLED if state is BatchState.CANCELLING else final
    connection.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(state=final.value, finished_at=at))


def miscounted_batches(connection: Connection) -> list[str]:
    """The batches that are wholly entered and open, and whose counts are not those of a full count."""
    return list(counts.miscounted(connection, BATCHES.c.state.in_(_ENTERED_AND_OPEN)))


def mend_counts(connection: Connection, batch_id: str) -> dict[str, int]:
    """Put the counts of a wholly entered batch right, and close it where none of its requests is open.

    Returns what was added to the count of which state.
    """
    added = counts.mend(connection, batch_id)
    settle(connection, batch_id, time.time())
    return added


def load_batch(connection: Connection, batch_id: str) -> Batch:
    """Raises NotFoundError."""
    for batch in _load(connection, select(BATCHES).where(BATCHES.c.id == batch_id)):
        return batch
    raise NotFoundError(f"no batch {batch_id} in this ledger; `cidermill status` lists them")


def latest_batches(connection: Connection, limit: int) -> list[Batch]:
    return list(_load(connection, _newest_first().limit(limit)))


def unfinished_batch(connection: Connection, fingerprint: str) -> Batch | None:
    """The newest batch of the fingerprint that can be run, or came to its end and is not delivered."""
    ended = BATCHES.c.state.in_([BatchState.COMPLETED.value, BatchState.EXPIRED.value])
    undelivered = ended & BATCHES.c.delivered_at.is_(None)
    wanted = or_(BATCHES.c.state == BatchState.IN_PROGRESS.value, undelivered)
    query = _newest_first().where(BATCHES.c.fingerprint == fingerprint, wanted).limit(1)
    return next(_load(connection, query), None)


def open_models(connection: Connection) -> list[str]:
    """The models of open batches."""
    is_open = BATCHES.c.state.in_([state.value for state in OPEN_BATCH_STATES])
    return list(connection.execute(select(BATCHES.c.model).where(is_open).distinct()).scalars())


def running_batches(connection: Connection) -> list[RunningBatch]:
    """Batches in progress, oldest first."""
    c = BATCHES.c
    query = select(c.id, c.model, c.priority, c.placed_in).where(c.state == BatchState.IN_PROGRESS.value)
    return [RunningBatch(*row) for row in connection.execute(query.order_by(c.created_at, c.id))]


def cancelling_batches(connection: Connection) -> list[str]:
    """Batches that are being cancelled, oldest first."""
    cancelling = select(BATCHES.c.id).where(BATCHES.c.state == BatchState.CANCELLING.value)
    return list(connection.scalars(cancelling.order_by(BATCHES.c.created_at, BATCHES.c.id)))


def overdue_batches(connection: Connection, now: float) -> list[str]:
    """Batches whose deadline has passed at `now`, and of which something may be open; the first to expire first."""
    overdue = select(BATCHES.c.id).where(BATCHES.c.expires_at <= now, BATCHES.c.state.in_(_ENTERED_AND_OPEN))
    return list(connection.scalars(overdue.order_by(BATCHES.c.expires_at, BATCHES.c.id)))


def resolve_id(connection: Connection, name: str) -> str:
    """A batch id from `latest`, or from the start of an id (with or without `batch_`, in any case).

    Raises NotFoundError when no batch, or more than one, starts so.
    """
    if name == LATEST:
        newest = connection.execute(_newest_first().with_only_columns(BATCHES.c.id).limit(1)).scalar()
        if newest is None:
            raise NotFoundError("there is no batch in this ledger yet; `cidermill submit` or `cidermill run` makes one")
        return str(newest)
    if not name:
        raise NotFoundError("an empty name is no batch; `cidermill status` lists them")
    start = BATCH_PREFIX + name.lower().removeprefix(BATCH_PREFIX)
    like = func.lower(BATCHES.c.id).startswith(start, autoescape=True)
    found = list(connection.execute(select(BATCHES.c.id).where(like).limit(2)).scalars())
    if len(found) == 1:
        return str(found[0])
    if found:
        raise NotFoundError(f"more than one batch starts with {name!r}; give more of its characters")
    raise NotFoundError(f"no batch starts with {name!r}; `cidermill status` lists them")


def _newest_first() -> Select[Any]:
    return select(BATCHES).order_by(BATCHES.c.created_at.desc(), BATCHES.c.id.desc())


def _load(connection: Connection, query: Select[Any]) -> Iterator[Batch]:
    for row in connection.execute(query).all():
        yield batch_of_row(row, counts.counts_of(row))
