"""The window: how much of the ledger's open requests lies in Redis.

A million requests of 3 kB would fill Redis and take minutes to put there. So each queue holds WINDOW of them, batches
in the order of their submission and requests in input order, and is topped up from the ledger as workers empty it. Each
queue, a model's of one priority, has a window of its own: a later batch of high priority waits behind nothing else.
Large requests end it sooner, by their bytes; and while Redis is full, nothing is put there (api/queue/fullness.py).

A batch is placed in a Redis by whoever submits or resumes it, and topped up by the recorder of its ledger. A mark in
Redis says how far: of the open requests, those with an index below the mark are in Redis, the others are to come. A
request is put there before the mark moves, so a crash in between offers it again, and what is live is skipped.

Where the mark is gone, the server has forgotten all it had, and after a restart it may have forgotten the last of it;
the recorder mends that (api/reconciling.py): the mark goes down to the first request that is missing.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from redis.exceptions import ResponseError

from api.errors import LedgerError
from api.identity import index_of
from api.ledger.ledger import Ledger
from api.ledger.records import RunningBatch
from api.queue.fullness import ENTRY_BYTES
from api.queue.requests import RequestQueue
from api.queue.steps import refused_as_full
from api.schemas import Batch, GenerationRequest, Priority
from api.states import BatchState

logger = logging.getLogger("cidermill.queue")

WINDOW = 10_000
CHUNK = 1000
"""Requests put at a time, and the room that a window must have before it is topped up."""


class _Put(NamedTuple):
    """A chunk of a batch: how many requests were looked at, and how many were added."""

    batch_id: str
    looked_at: int
    added: int


Told = Callable[[int], None]
"""Told how many requests have been looked at."""


def place(ledger: Ledger, queue: RequestQueue, batch: Batch, on_placed: Told) -> int:
    """Put a batch in this Redis, as far as the window of its queue goes; returns how many requests were added.

    Of a batch that was placed before, what Redis has lost is put back. Requests of earlier batches that the queue has
    room for come first. Raises LedgerError for a batch that cannot be run, redis.exceptions.RedisError.
    """
    if batch.state in (BatchState.VALIDATING, BatchState.CANCELLING):
        rest = "a recorder (`cidermill record`) cancels the rest of it"
        advice = rest if batch.state is BatchState.CANCELLING else "submit it again"
        raise LedgerError(f"batch {batch.id} is {batch.state}, or was when its command was cut short; {advice}")
    try:
        return _place(ledger, queue, batch, on_placed)
    except ResponseError as error:
        if not refused_as_full(error):
            raise
        logger.warning("Redis is full: what is not there of %s, the recorder puts there when there is room", batch.id)
        return 0


def _place(ledger: Ledger, queue: RequestQueue, batch: Batch, on_placed: Told) -> int:
    try:
        queue.start_mark(batch.id)
    finally:  # after the mark: a recorder takes a placed batch without one for forgotten
        ledger.note_placed(batch.id, queue.address)
    rewind(ledger, queue, batch)
    there = queue.marks([batch.id]).get(batch.id)
    seen = ledger.count_open(batch.id, stop=there.below) if there else 0
    if seen:
        on_placed(seen)
    added = 0
    while True:
        with queue.topping_up(batch.model, batch.priority, wait=True):
            put = _top_up(ledger, queue, batch.model, batch.priority)
        if put is None:
            return added
        if put.batch_id == batch.id:
            added, seen = added + put.added, seen + put.looked_at
            on_placed(seen)


def rewind(ledger: Ledger, queue: RequestQueue, batch: Batch | RunningBatch) -> int:
    """Let what is missing below the mark of a batch come again, by `top_up`; returns how many requests that are.

    The mark goes down to the first of them. Those after it that are live are passed over.
    """
    first, count = None, 0
    for chunk in _chunks(ledger.open_requests(batch.id, stop=queue.start_mark(batch.id))):
        missing = _missing(ledger, queue, chunk, batch.model)
        count += len(missing)
        if missing and first is None:
            first = index_of(missing[0].request_id)
    if first is not None:
        queue.move_mark_down(batch.id, first)
    return count


def top_up(ledger: Ledger, queue: RequestQueue) -> int:
    """Put one chunk into each queue that has room for it, of batches that were placed; returns how many were looked at.

    A queue that somebody else tops up at this moment is left to them.
    """
    total = 0
    for model, priority in dict.fromkeys((batch.model, batch.priority) for batch in ledger.running_batches()):
        with queue.topping_up(model, priority, wait=False) as ours:
            put = _top_up(ledger, queue, model, priority) if ours else None
            total += put.looked_at if put else 0
    return total


def _top_up(ledger: Ledger, queue: RequestQueue, model: str, priority: Priority) -> _Put | None:
    """Put the next chunk of the first placed batch that has one; None: there is none, or no room."""
    batches = ledger.running_batches()
    ids = [batch.id for batch in batches if (batch.model, batch.priority) == (model, priority)]
    room = WINDOW
    for batch_id, mark in queue.marks(ids).items():
        room -= ledger.count_open(batch_id, stop=mark.below)
        if room < CHUNK:
            break
        coming = islice(ledger.open_requests(batch_id, start=mark.below), CHUNK)
        first = next(coming, None)
        if first is None:
            continue
        chunk = _fitting(chain([first], coming), queue.room(model, priority))
        if not chunk:
            break
        missing = _missing(ledger, queue, chunk, model)
        settled = partial(_settled, ledger, queue)
        added = queue.enqueue(missing, model=model, priority=priority, settled=settled) if missing else 0
        queue.move_mark_up(batch_id, mark, index_of(chunk[-1].request_id) + 1)
        # Who closed some of them meanwhile has left alone what was not below the mark yet.
        if closed := ledger.final([request.request_id for request in chunk]):
            queue.forget(closed)
        return _Put(batch_id, len(chunk), added)
    return None


def _fitting(requests: Iterable[GenerationRequest], room_bytes: int) -> list[GenerationRequest]:
    """The first of them, as many as there is room for: one at least, where there is any."""
    found: list[GenerationRequest] = []
    for request in requests:
        if room_bytes <= 0:
            break
        found.append(request)
        room_bytes -= ENTRY_BYTES + len(request.model_dump_json(exclude_defaults=True))
    return found


def _settled(ledger: Ledger, queue: RequestQueue, request_ids: Sequence[str]) -> set[str]:
    """Those that became answered or final, by a worker that Redis forgot or by a cancellation, before they were put.

    In this order, as in `_missing`.
    """
    answered = queue.answered()
    return answered.intersection(request_ids) | ledger.final(request_ids)


def _missing(
    ledger: Ledger, queue: RequestQueue, requests: Sequence[GenerationRequest], model: str
) -> list[GenerationRequest]:
    """Those that nobody will answer: neither live, nor set aside, nor answered, nor final by now.

    In this order, since a request goes from live to set aside or answered, and then to final. The ledger shows the rest
    as queued before they are: a worker can start a request before `enqueue` returns.
    """
    live = queue.live([request.request_id for request in requests])
    missing = [request for request in requests if request.request_id not in live]
    if not missing:
        return []
    ended = queue.ids_set_aside(model) | queue.answered()
    unanswered = [request for request in missing if request.request_id not in ended]
    still_open = ledger.requeued([request.request_id for request in unanswered])
    return [request for request in unanswered if request.request_id in still_open]


def _chunks(requests: Iterable[GenerationRequest]) -> Iterable[list[GenerationRequest]]:
    iterator = iter(requests)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
