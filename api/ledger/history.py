"""The history of requests, as the ledger tells it: how each was queued, then what became of it, in that order.

What the ledger has heard or decided is in `events`, whose ids grow with each commit. That a request was queued is no
event: its row in `requests` says it.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Select, select

from api.event_kinds import EventKind
from api.ledger.records import HistoryEntry
from api.ledger.tables import BATCH_OF_REQUEST, EVENTS, REQUESTS


def queued_requests(batch_id: str, request_ids: Collection[str] | None) -> Select[Any]:
    """Requests of a batch, or some of them, that were queued; the others were refused when they were entered."""
    c = REQUESTS.c
    query = select(c.idx, c.id, c.queued_at).where(c.batch_id == batch_id, c.body.is_not(None))
    return query if request_ids is None else query.where(c.id.in_(request_ids))


def queued_entry(row: Any) -> HistoryEntry:
    """From a row of `queued_requests`."""
    return HistoryEntry(
        number=0, request_id=row.id, kind=EventKind.QUEUED, worker="", attempt=0, at=row.queued_at, detail=None
    )


def events_of(batch_id: str, request_ids: Collection[str] | None, kinds: Collection[str]) -> Select[Any]:
    """The events of a batch, or of some of its requests."""
    c = EVENTS.c
    query = select(c.id, c.request_id, c.kind, c.worker, c.attempt, c.at, c.detail)
    if request_ids is None:
        query = query.where(f"{batch_id}-" == BATCH_OF_REQUEST)
    else:
        query = query.where(c.request_id.in_(request_ids))
    wanted = {str(kind) for kind in kinds} - {EventKind.QUEUED}
    return query if len(wanted) == len(EventKind) - 1 else query.where(c.kind.in_(sorted(wanted)))


def requests_named(connection: Connection, batch_id: str, name: str) -> list[str]:
    """The ids of the requests of a batch that have `name` as their id or custom_id, in input order."""
    c = REQUESTS.c
    found = {row for by in (c.id, c.custom_id) for row in connection.execute(_named(by == name))}
    return [request_id for index, request_id, batch in sorted(found) if batch == batch_id]


def _named(condition: Any) -> Select[Any]:
    # Without the batch: SQLite would rather walk through all of its requests than use the index of names.
    return select(REQUESTS.c.idx, REQUESTS.c.id, REQUESTS.c.batch_id).where(condition)
