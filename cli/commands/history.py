"""The history of requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from api.event_kinds import EventKind
from cli.named import request_named
from cli.options import DataDir, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from api.ledger.ledger import Ledger
    from api.ledger.records import HistoryEntry

FOLLOW_SECONDS = 0.5


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: cidermill events latest --kind requeued --kind late")(events)


def events(
    of: Annotated[
        str,
        typer.Argument(
            metavar="BATCH|REQUEST",
            help="Batch id, the start of one, or 'latest'; or a request: the same, a hyphen, its index.",
        ),
    ] = "latest",
    request: Annotated[
        str | None, typer.Option("--request", help="Of this request of the batch alone: its id or custom_id.")
    ] = None,
    kind: Annotated[list[EventKind] | None, typer.Option("--kind", help="Of this kind; may be given again.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until the batch comes to its end.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Show what happened to the requests of a batch, or to one: when, on which worker, in which attempt, and why.

    First how they were queued, then events in the order in which the ledger heard of them.
    """
    from cli.history_view import show_history

    ledger = Workspace(data_dir=data_dir).ledger
    batch_id, request_ids = _chosen(ledger, of, request)
    show_history(_entries(ledger, batch_id, request_ids, kind or list(EventKind), follow))


def _chosen(ledger: Ledger, of: str, request: str | None) -> tuple[str, list[str] | None]:
    """The batch, and those of its requests that are meant; None for all. Raises NotFoundError."""
    found = request_named(ledger, of)
    if found is not None:
        if request is not None:
            raise typer.BadParameter("name the request once: as the argument, or with --request after its batch")
        return found.batch_id, [found.request_id]
    batch_id = ledger.resolve(of)
    return batch_id, None if request is None else ledger.requests_named(batch_id, request)


def _entries(
    ledger: Ledger, batch_id: str, request_ids: list[str] | None, kinds: list[EventKind], follow: bool
) -> Iterator[HistoryEntry]:
    after = None
    while True:
        ends = not follow or ledger.batch(batch_id).finished_at is not None  # asked before what may be its last events
        for entry in ledger.history(batch_id, request_ids=request_ids, kinds=kinds, after=after):
            after = entry.number
            yield entry
        if ends:
            return
        after = after or 0
        time.sleep(FOLLOW_SECONDS)
