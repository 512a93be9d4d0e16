"""Batches in the ledger: how one is entered, found, counted and closed. Each function works within a transaction."""

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, exists, func, insert, or_, select, update

from api.dataset.request_line import InputLine, LineError, default_custom_id
from api.errors import NotFoundError
from api.identity import BATCH_PREFIX, request_id
from api.ledger.records import batch_of_row
from api.ledger.rows import failed_row
from api.ledger.tables import BATCHES, OPEN, REQUESTS, RESULTS
from api.schemas import Batch, RequestError
from api.states import OPEN_BATCH_STATES, BatchState, RequestState

CHUNK = 1000
LATEST = "latest"

Row = dict[str, Any]


def enter_batch(connection: Connection, batch: Row, lines: Iterable[InputLine | LineError]) -> None:
    """Write a batch of `batches` columns and its requests; a LineError becomes a request that has failed already."""
    now = time.time()
    state = BatchState.IN_PROGRESS.value
    connection.execute(insert(BATCHES), {**batch, "state": state, "created_at": now})
    numbered = enumerate(lines)
    while chunk := list(islice(numbered, CHUNK)):
        connection.execute(insert(REQUESTS), [_request_row(batch["id"], index, line, now) for index, line in chunk])
        failures = [_failure(batch["id"], index, line) for index, line in chunk if isinstance(line, LineError)]
        if failures:
            connection.execute(insert(RESULTS), failures)
    settle(connection, batch["id"], now)


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


def settle(connection: Connection, batch_id: str, at: float) -> None:
    """Close an open batch of which no request is open: completed, or cancelled when it was cancelling."""
    closes = {BatchState.CANCELLING: BatchState.CANCELLED}
    state = BatchState(connection.execute(select(BATCHES.c.state).where(BATCHES.c.id == batch_id)).scalar_one())
    any_open = select(exists().where(REQUESTS.c.batch_id == batch_id, OPEN))
    if state in OPEN_BATCH_STATES and not connection.execute(any_open).scalar():
        final = closes.get(state, BatchState.COMPLETED)
        closed = update(BATCHES).where(BATCHES.c.id == batch_id).values(state=final.value, finished_at=at)
        connection.execute(closed)


def load_batch(connection: Connection, batch_id: str) -> Batch:
    """Raises NotFoundError."""
    for batch in _load(connection, select(BATCHES).where(BATCHES.c.id == batch_id)):
        return batch
    raise NotFoundError(f"no batch {batch_id} in this ledger; `cidermill status` lists them")


def latest_batches(connection: Connection, limit: int) -> list[Batch]:
    return list(_load(connection, _newest_first().limit(limit)))


def unfinished_batch(connection: Connection, fingerprint: str) -> Batch | None:
    """The newest batch of the fingerprint that is open, or complete and not delivered."""
    undelivered = (BATCHES.c.state == BatchState.COMPLETED.value) & BATCHES.c.delivered_at.is_(None)
    wanted = or_(BATCHES.c.state.in_([state.value for state in OPEN_BATCH_STATES]), undelivered)
    query = _newest_first().where(BATCHES.c.fingerprint == fingerprint, wanted).limit(1)
    return next(_load(connection, query), None)


def open_models(connection: Connection) -> list[str]:
    """The models of open batches."""
    is_open = BATCHES.c.state.in_([state.value for state in OPEN_BATCH_STATES])
    return list(connection.execute(select(BATCHES.c.model).where(is_open).distinct()).scalars())


def resolve_id(connection: Connection, name: str) -> str:
    """A batch id from `latest`, or from the start of an id (with or without `batch_`, in any case).

    Raises NotFoundError when no batch, or more than one, starts so.
    """
    if name == LATEST:
        newest = connection.execute(_newest_first().with_only_columns(BATCHES.c.id).limit(1)).scalar()
        if newest is None:
            raise NotFoundError("there is no batch in this ledger yet; `cidermill submit` or `cidermill run` makes one")
        return str(newest)
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
        yield batch_of_row(row, _counts(connection, row.id))


def _counts(connection: Connection, batch_id: str) -> dict[str, int]:
    query = select(REQUESTS.c.state, func.count()).where(REQUESTS.c.batch_id == batch_id).group_by(REQUESTS.c.state)
    return {state: int(count) for state, count in connection.execute(query)}
