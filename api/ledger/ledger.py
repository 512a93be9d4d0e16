"""The ledger as the rest of the program sees it: one SQLite file, opened, migrated, and asked.

Every method is one transaction, or a series of short ones where a batch is entered or cancelled: no writer keeps
another waiting for long. It may be called from any thread, and raises LedgerError, or StorageError where the disk is
full.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Column, Engine, Select, func, select, update

from api.choices import Format, Priority
from api.dataset.request_line import InputLine, LineError
from api.errors import NotFoundError
from api.event_kinds import EventKind
from api.ledger import batches, recording, statistics
from api.ledger.connection import create_file, open_engine, reading, writing
from api.ledger.history import events_of, queued_entry, queued_requests, requests_named
from api.ledger.migrate import migrate
from api.ledger.records import (
    BatchStats,
    HistoryEntry,
    RecordedRequest,
    RunningBatch,
    generation_request,
    recorded_request,
)
from api.ledger.tables import BATCHES, EVENTS, OPEN, REQUESTS, RESULTS
from api.schemas import Batch, GenerationRequest, RequestError, RequestEvent
from api.states import FINAL_REQUEST_STATES, RequestState

PAGE = 500
"""Requests read at a time: no reader holds a view of the file, or more than a page of texts, for long."""
CLOSED_AT_ONCE = 10_000
"""Requests that one transaction cancels or lets expire: it holds the write lock for some tenths of a second."""


class Ledger:
    """An open ledger. Use `Ledger.open`."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self.engine = engine

    @classmethod
    def open(cls, path: Path) -> "Ledger":
        """Open the file, creating it (mode 0600) and bringing its tables up to date.

        Raises LedgerError (not a ledger, written by a newer program, no permission), StorageError (disk full).
        """
        create_file(path)
        engine = open_engine(path)
        try:
            migrate(engine, path)
        except BaseException:
            engine.dispose()
            raise
        return cls(path, engine)

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def create_batch(
        self,
        *,
        batch_id: str,
        model: str,
        priority: Priority,
        input_path: str | Path,
        input_sha256: str,
        fingerprint: str,
        output_path: str | Path | None,
        output_format: Format,
        lines: Iterable[InputLine | LineError],
        expires_at: float | None = None,
    ) -> Batch:
        """Enter a batch and all its requests, or nothing. A LineError becomes a request that has failed already.

        expires_at: when what is open of it expires, in seconds since the epoch; None = never.

        Until all are there the batch is `validating`. What a process that was killed has left is removed by a later
        call.
        """
        self._remove_abandoned()
        row = {
            "id": batch_id,
            "model": model,
            "priority": priority,
            "input_path": str(input_path),
            "input_sha256": input_sha256,
            "fingerprint": fingerprint,
            "output_path": None if output_path is None else str(output_path),
            "output_format": output_format,
            "expires_at": expires_at,
        }
        with writing(self.engine, self.path) as connection:
            batches.begin_batch(connection, row)
        try:
            numbered = enumerate(lines)
            while chunk := list(islice(numbered, batches.CHUNK)):  # read and checked without the write lock
                with writing(self.engine, self.path) as connection:
                    batches.enter_requests(connection, batch_id, chunk)
            with writing(self.engine, self.path) as connection:
                batches.end_of_entry(connection, batch_id)
                return batches.load_batch(connection, batch_id)
        except BaseException:
            self._remove(batch_id)
            raise

    def _remove_abandoned(self) -> None:
        with reading(self.engine, self.path) as connection:
            abandoned = batches.abandoned_batches(connection)
        for batch_id in abandoned:
            self._remove(batch_id)

    def _remove(self, batch_id: str) -> None:
        left = True
        while left:
            with writing(self.engine, self.path) as connection:
                left = batches.remove_some(connection, batch_id)

    def batch(self, batch_id: str) -> Batch:
        """Raises NotFoundError."""
        with reading(self.engine, self.path) as connection:
            return batches.load_batch(connection, batch_id)

    def batches(self, limit: int = 20) -> list[Batch]:
        """The newest batches, newest first."""
        with reading(self.engine, self.path) as connection:
            return batches.latest_batches(connection, limit)

    def resolve(self, name: str) -> str:
        """A batch id from `latest`, or from the start of an id, in any case. Raises NotFoundError."""
        with reading(self.engine, self.path) as connection:
            return batches.resolve_id(connection, name)

    def find_unfinished(self, fingerprint: str) -> Batch | None:
        """The newest batch of the fingerprint that can be run, or came to its end and is not delivered."""
        with reading(self.engine, self.path) as connection:
            return batches.unfinished_batch(connection, fingerprint)

    def open_models(self) -> list[str]:
        """The models of open batches."""
        with reading(self.engine, self.path) as connection:
            return batches.open_models(connection)

    def output_of(self, batch_id: str) -> tuple[Path | None, Format]:
        """Where the answers go (None: standard output), and in which format. Raises NotFoundError."""
        c = BATCHES.c
        with reading(self.engine, self.path) as connection:
            batches.load_batch(connection, batch_id)
            path, output_format = connection.execute(
                select(c.output_path, c.output_format).where(c.id == batch_id)
            ).one()
        return (None if path is None else Path(path)), output_format

    def mark_delivered(self, batch_id: str) -> None:
        """Remember that the output was written, so that the same command starts a new batch."""
        with writing(self.engine, self.path) as connection:
            batches.load_batch(connection, batch_id)
            connection.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(delivered_at=time.time()))

    def note_placed(self, batch_id: str, address: str) -> None:
        """Remember into which Redis a batch is put."""
        with writing(self.engine, self.path) as connection:
            connection.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(placed_in=address))

    def record(self, events: Sequence[RequestEvent]) -> list[str]:
        """Enter events, all or none; returns the ids that became final by this.

        The first result of a request wins; a later one is kept as an event alone. Events may come twice and out of
        order; one of an unknown request is logged and dropped.
        """
        with writing(self.engine, self.path) as connection:
            notes = recording.record_events(connection, events)
        recording.tell(notes)
        return [note["request_id"] for note in notes if note["kind"] in recording.DECISIONS]

    def fail(self, request_id: str, error: RequestError, *, worker: str | None = None) -> bool:
        """Give a request up; False when it is final already, or not in this ledger."""
        with writing(self.engine, self.path) as connection:
            return recording.fail_request(connection, request_id, error, worker)

    def begin_cancelling(self, batch_id: str) -> None:
        """From now on no more of the batch goes on the queue. Raises NotFoundError."""
        with writing(self.engine, self.path) as connection:
            batches.load_batch(connection, batch_id)
            recording.begin_cancelling(connection, batch_id)

    def cancel(self, batch_id: str) -> list[str]:
        """Cancel what is open of a batch, CLOSED_AT_ONCE requests at most; returns those ids. Raises NotFoundError.

        The batch is `cancelling` until all are cancelled: call it until nothing comes back.
        """
        self.begin_cancelling(batch_id)
        return self._close(batch_id, RequestState.CANCELLED, frozenset())

    def cancelling(self) -> list[str]:
        """The batches that are being cancelled, or were when their command was cut short."""
        with reading(self.engine, self.path) as connection:
            return batches.cancelling_batches(connection)

    def overdue(self, now: float) -> list[str]:
        """The batches that are open although their deadline has passed at `now`."""
        with reading(self.engine, self.path) as connection:
            return batches.overdue_batches(connection, now)

    def expire(self, batch_id: str, *, spared: Collection[str]) -> list[str]:
        """Let what is open of an overdue batch expire, without those spared, as `cancel` does; returns those ids.

        A result that is recorded in the meantime stays; one that comes later is late.
        """
        return self._close(batch_id, RequestState.EXPIRED, spared)

    def _close(self, batch_id: str, final: RequestState, spared: Collection[str]) -> list[str]:
        closed: list[str] = []
        with writing(self.engine, self.path) as connection:
            while len(closed) < CLOSED_AT_ONCE:
                some = recording.close_some(connection, batch_id, final, spared)
                closed += some
                if not some:
                    break
        return closed

    def recount(self) -> dict[str, dict[str, int]]:
        """Count the requests of all open batches, and mend the counts that a process of an older version left wrong.

        Returns by batch id what was added to the count of which state. A batch of which nothing is open is closed.
        A full count of a million requests of 3 kB takes 1 to 2 s, and 9 s from a cold disk of 0.5 GB/s (2 cores,
        2026-11-30). It is made without the write lock, and once more, with it, of a batch that was wrong.
        """
        with reading(self.engine, self.path) as connection:
            wrong = batches.miscounted_batches(connection)
        mended = {}
        for batch_id in wrong:
            with writing(self.engine, self.path) as connection:
                mended[batch_id] = batches.mend_counts(connection, batch_id)
        return {batch_id: added for batch_id, added in mended.items() if added}

    def requeued(self, request_ids: Collection[str]) -> set[str]:
        """Show those that were running as queued: whoever ran them is gone, and they go on the queue again.

        Returns those that are open still; the others have become final in the meantime.
        """
        with writing(self.engine, self.path) as connection:
            return recording.requeue_running(connection, request_ids)

    def open_requests(self, batch_id: str, *, start: int = 0, stop: int | None = None) -> Iterator[GenerationRequest]:
        """The queued and running requests, in input order. start, stop: of their indices; None is the end."""
        deadline = select(BATCHES.c.expires_at).where(BATCHES.c.id == batch_id).scalar_subquery().label("expires_at")
        query = select(REQUESTS.c.idx, REQUESTS.c.id, REQUESTS.c.body, deadline)
        query = query.where(REQUESTS.c.batch_id == batch_id, OPEN)
        if stop is not None:
            query = query.where(REQUESTS.c.idx < stop)
        return (generation_request(row) for row in self._pages(query, start))

    def count_open(self, batch_id: str, *, stop: int) -> int:
        """How many requests with an index below `stop` are queued or running."""
        query = select(func.count()).where(REQUESTS.c.batch_id == batch_id, REQUESTS.c.idx < stop, OPEN)
        with reading(self.engine, self.path) as connection:
            return int(connection.scalar(query) or 0)

    def running_batches(self) -> list[RunningBatch]:
        """Batches in progress, oldest first."""
        with reading(self.engine, self.path) as connection:
            return batches.running_batches(connection)

    def results(self, batch_id: str, *, states: Collection[RequestState] | None = None) -> Iterator[RecordedRequest]:
        """The requests of a batch, or those in `states`, with their results, in input order."""
        query = _recorded().where(REQUESTS.c.batch_id == batch_id)
        if states is not None:
            query = query.where(REQUESTS.c.state.in_([state.value for state in states]))
        return (recorded_request(row) for row in self._pages(query))

    def known(self, request_ids: Collection[str]) -> set[str]:
        """Those that are requests of this ledger, whatever their state."""
        with reading(self.engine, self.path) as connection:
            return recording.known_requests(connection, request_ids)

    def final(self, request_ids: Sequence[str]) -> set[str]:
        """Those that are in a final state."""
        found: set[str] = set()
        states = [state.value for state in FINAL_REQUEST_STATES]
        with reading(self.engine, self.path) as connection:
            for start in range(0, len(request_ids), PAGE):
                named = REQUESTS.c.id.in_(request_ids[start : start + PAGE])
                found.update(connection.scalars(select(REQUESTS.c.id).where(named, REQUESTS.c.state.in_(states))))
        return found

    def request(self, request_id: str) -> RecordedRequest:
        """Raises NotFoundError."""
        with reading(self.engine, self.path) as connection:
            row = connection.execute(_recorded().where(REQUESTS.c.id == request_id)).one_or_none()
        if row is None:
            raise NotFoundError(f"no request {request_id} in this ledger; an id is BATCH-INDEX, with the index from 0")
        return recorded_request(row)

    def history(
        self,
        batch_id: str,
        *,
        request_ids: Collection[str] | None = None,
        kinds: Collection[str] = tuple(EventKind),
        after: int | None = None,
    ) -> Iterator[HistoryEntry]:
        """What happened to a batch, or to some of its requests: how they were queued, then the events as they came.

        after: the number of an event; what came up to it, and how requests were queued, is left out.
        """
        if after is None and EventKind.QUEUED in kinds:
            yield from map(queued_entry, self._pages(queued_requests(batch_id, request_ids)))
        query = events_of(batch_id, request_ids, kinds)
        for row in self._pages(query, (after or 0) + 1, EVENTS.c.id):
            yield HistoryEntry(*row)

    def requests_named(self, batch_id: str, name: str) -> list[str]:
        """The ids of the requests of a batch that have `name` as their id or custom_id. Raises NotFoundError."""
        with reading(self.engine, self.path) as connection:
            found = requests_named(connection, batch_id, name)
        if not found:
            raise NotFoundError(f"batch {batch_id} has no request {name!r}, neither as an id nor as a custom_id")
        return found

    def stats(self, batch_id: str) -> BatchStats:
        """Sums and ratios over the results of a batch. Raises NotFoundError."""
        with reading(self.engine, self.path) as connection:
            return statistics.batch_stats(connection, batch_id)

    def _pages(self, query: Select[Any], start: int = 0, by: Column[int] = REQUESTS.c.idx) -> Iterator[Any]:
        """Rows of a query in the order of `by`, from `start` on; each page is a view of its own."""
        after = start - 1
        while True:
            page = query.where(by > after).order_by(by).limit(PAGE)
            with reading(self.engine, self.path) as connection:
                rows = connection.execute(page).all()
            if not rows:
                return
            yield from rows
            after = getattr(rows[-1], by.name)


def _recorded() -> Select[Any]:
    """`requests` with `results` beside it, NULL where there is none; the worker of the request as request_worker."""
    columns = [column for column in REQUESTS.c if column.name != "worker"]
    joined = REQUESTS.outerjoin(RESULTS, RESULTS.c.request_id == REQUESTS.c.id)
    return select(*columns, REQUESTS.c.worker.label("request_worker"), *RESULTS.c).select_from(joined)
