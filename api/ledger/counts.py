"""How requests enter the ledger, move and leave it: always with their count by state, in the row of their batch.

All statements that write `requests` are here, each in one transaction with its change of the counts, so that nobody
need count a million requests to know them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select, update

from api.ledger.moves import Standing
from api.ledger.tables import BATCHES, REQUESTS
from api.states import RequestState

_MOVED = ("state", "attempts", "worker", "started_at", "finished_at")

By = tuple[str, str]
"""A batch and a state."""


def enter(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write new rows of `requests`."""
    connection.execute(insert(REQUESTS), rows)
    _change(connection, Counter((row["batch_id"], row["state"]) for row in rows))


def move_all(connection: Connection, chosen: ColumnElement[bool], to: RequestState, **values: Any) -> None:
    """Move the requests that a condition chooses. values: of other columns."""
    changes = Counter[By]()
    for by, count in _counted(connection, chosen).items():
        changes[by] -= count
        changes[by[0], to.value] += count
    connection.execute(update(REQUESTS).where(chosen).values(state=to.value, **values))
    _change(connection, changes)


def move_each(connection: Connection, standings: Mapping[str, Standing]) -> None:
    """Write where requests stand that events have moved. standings: by request id."""
    moved = {request_id: standing for request_id, standing in standings.items() if standing.changed}
    if not moved:
        return
    statement = update(REQUESTS).where(REQUESTS.c.id == bindparam("request"))
    statement = statement.values({name: bindparam(f"new_{name}") for name in _MOVED})
    rows = [
        {"request": request_id} | {f"new_{name}": getattr(standing, name) for name in _MOVED}
        for request_id, standing in moved.items()
    ]
    connection.execute(statement, rows)
    changes = Counter[By]()
    for standing in moved.values():
        changes[standing.batch_id, standing.found_in.value] -= 1
        changes[standing.batch_id, standing.state.value] += 1
    _change(connection, changes)


def remove(connection: Connection, request_ids: Iterable[str]) -> None:
    """Delete requests with everything that hangs on them."""
    chosen = REQUESTS.c.id.in_(list(request_ids))
    leaving = _counted(connection, chosen)
    connection.execute(delete(REQUESTS).where(chosen))
    _change(connection, Counter({by: -count for by, count in leaving.items()}))


def miscounted(connection: Connection, chosen: ColumnElement[bool]) -> dict[str, dict[str, int]]:
    """Of the batches that a condition chooses, those whose counts are wrong: by id, what a full count adds by state."""
    full = _counted(connection, REQUESTS.c.batch_id.in_(select(BATCHES.c.id).where(chosen)))
    found = {}
    for batch in connection.execute(select(BATCHES).where(chosen)):
        added = {state: full.get((batch.id, state), 0) - count for state, count in counts_of(batch).items()}
        if any(added.values()):
            found[batch.id] = {state: change for state, change in added.items() if change}
    return found


def mend(connection: Connection, batch_id: str) -> dict[str, int]:
    """Put the counts of a batch right by a full count; returns what was added by state."""
    added = miscounted(connection, BATCHES.c.id == batch_id).get(batch_id, {})
    _change(connection, {(batch_id, state): change for state, change in added.items()})
    return added


def counts_of(batch: Any) -> dict[str, int]:
    """Requests by state, from a row of `batches`."""
    return {state.value: getattr(batch, state.value) for state in RequestState}


def _counted(connection: Connection, chosen: ColumnElement[bool]) -> dict[By, int]:
    c = REQUESTS.c
    grouped = select(c.batch_id, c.state, func.count()).where(chosen).group_by(c.batch_id, c.state)
    return {(batch_id, state): count for batch_id, state, count in connection.execute(grouped)}


def _change(connection: Connection, changes: Mapping[By, int]) -> None:
    for batch_id in {batch_id for batch_id, _ in changes}:
        own = {state: change for (of, state), change in changes.items() if of == batch_id and change}
        if own:
            sums = {state: BATCHES.c[state] + change for state, change in own.items()}
            connection.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(sums))
