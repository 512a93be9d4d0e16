"""Who hands requests in, some with a deadline, cancels some, and puts back what Redis lost.

As an operator does, and through the same API.
"""

import random
import time
from pathlib import Path
from typing import cast

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import func, select

from api.choices import Priority
from api.closing import cancel
from api.dataset.request_line import InputLine
from api.errors import QueueError
from api.identity import new_batch_id, request_id
from api.ledger.ledger import Ledger
from api.ledger.tables import BATCHES, EVENTS, REQUESTS, RESULTS
from api.queue.requests import RequestQueue
from api.schemas import PRIORITIES, RequestBody
from api.states import BatchState
from api.submission import requeue_missing
from api.window import place
from tests.history.fleet import MODEL
from tests.history.history import Accepted, BatchRow, Row
from tests.history.timed_queue import OVERDUE_TOKENS, TimedQueue
from tests.history.worker_entry import DEADLY
from tests.worker.scripted_engine import scripted_text

BRIEF_SECONDS = (0.2, 2.0)
"""Deadlines of batches, from their entry."""
HEADER = 300
"""Characters that prompts of a kind begin with: enough to be served together."""


class Producer:
    """Batches from a seed. accepted: every request that the ledger took."""

    def __init__(self, ledger_path: Path, seed: int, settling_seconds: float) -> None:
        self.ledger = Ledger.open(ledger_path)
        self.accepted: dict[str, Accepted] = {}
        self._chance = random.Random(seed)
        self._seed, self._settling_seconds = seed, settling_seconds
        self._entered = 0

    def enter(self, size: int, redis: Redis, expires_seconds: float | None = None) -> None:
        """A batch into the ledger, then on the queue. An outage leaves it in the ledger, for `resume`.

        expires_seconds: until its deadline, before which some of it may run; None = only every sixth batch has one.
        """
        self._entered += 1
        overdue = self._entered % 6 == 3 and expires_seconds is None
        if self._entered % 6 == 5 and expires_seconds is None:
            expires_seconds = self._chance.uniform(*BRIEF_SECONDS)
        expires_at = None if expires_seconds is None else time.time() + expires_seconds
        lines, expected = [], []
        batch_id = new_batch_id()
        for index in range(3 if overdue else size):
            deadly = not overdue and expires_at is None and self._entered % 4 == 2 and index == size // 2
            failing = not overdue and self._entered % 4 == 0 and index == size // 3
            tokens = OVERDUE_TOKENS if overdue else self._chance.randint(1, 5)
            header = "abc"[index % 3] * HEADER  # three kinds in turn, so that requests are passed over
            verb = DEADLY if deadly else "fill" if failing else "say"
            prompt = f"{verb} {header} {self._seed}/{self._entered}/{index}"
            lines.append(InputLine(index + 1, str(index), RequestBody(prompt=prompt, max_tokens=tokens)))
            text = scripted_text(prompt, tokens)
            own = request_id(batch_id, index)
            expected.append(Accepted(own, batch_id, text, deadly, overdue, expires_at, failing))
        priority = cast(Priority, self._chance.choice(PRIORITIES)) if expires_at is None else "high"
        batch = self.ledger.create_batch(
            batch_id=batch_id,
            model=MODEL,
            priority=priority,
            input_path="none",
            input_sha256="0",
            fingerprint=batch_id,
            output_path=None,
            output_format="jsonl",
            lines=lines,
            expires_at=expires_at,
        )
        self.accepted |= {one.request_id: one for one in expected}
        place(self.ledger, self._queue(redis), batch, lambda _: None)

    def cancel(self, redis: Redis) -> None:
        """The oldest batch that has something open."""
        for batch_id in self.open_batches()[:1]:
            cancel(self.ledger, self._queue(redis), batch_id)

    def begin_cancelling(self) -> None:
        """As `cancel`, by a command that dies before its first step: the recorder does the rest."""
        for batch_id in self.open_batches()[:1]:
            self.ledger.begin_cancelling(batch_id)

    def resume(self, redis: Redis) -> None:
        """Put back what is open and unknown to Redis; what is being cancelled is left to the recorder."""
        for batch_id in self.open_batches():
            if self.ledger.batch(batch_id).state is not BatchState.CANCELLING:
                requeue_missing(self.ledger, self._queue(redis), batch_id)

    def waiting(self, redis: Redis) -> int:
        """Requests that nobody has taken."""
        return sum(self._queue(redis).depth(MODEL).values())

    def open_count(self) -> int:
        return sum(batch.counts.total - batch.counts.finished for batch in self.ledger.batches(limit=10**6))

    def open_batches(self) -> list[str]:
        """Oldest first."""
        found = self.ledger.batches(limit=10**6)
        return [batch.id for batch in reversed(found) if batch.counts.finished < batch.counts.total]

    def _queue(self, redis: Redis) -> RequestQueue:
        settling = self._settling_seconds
        return TimedQueue(redis, max_attempts=2, request_timeout_seconds=600, settling_seconds=settling)

    def rows(self) -> dict[str, Row]:
        """The requests as the tables have them, read without the code under test."""
        r, s, e = REQUESTS.c, RESULTS.c, EVENTS.c
        with self.ledger.engine.connect() as connection:
            events: dict[str, list[tuple[str, str, int]]] = {}
            for request, kind, worker, attempt in connection.execute(
                select(e.request_id, e.kind, e.worker, e.attempt).order_by(e.id)
            ):
                events.setdefault(request, []).append((kind, worker, attempt))
            results = {row.request_id: row for row in connection.execute(select(RESULTS))}
            count = select(s.request_id, func.count()).group_by(s.request_id)
            counts = dict(connection.execute(count).tuples().all())
            found = {}
            for request, state, finished_at in connection.execute(select(r.id, r.state, r.finished_at)):
                result = results.get(request)
                given = ("text", "error_code", "error_message", "worker", "attempt")
                fields = {} if result is None else {name: getattr(result, name) for name in given}
                found[request] = Row(
                    request,
                    state,
                    counts.get(request, 0),
                    events=tuple(events.get(request, ())),
                    finished_at=finished_at,
                    **fields,
                )
        return found

    def batch_rows(self) -> dict[str, BatchRow]:
        with self.ledger.engine.connect() as connection:
            states = dict(connection.execute(select(BATCHES.c.id, BATCHES.c.state)).tuples().all())
        found = {}
        for batch_id, state in states.items():
            counts = self.ledger.batch(batch_id).counts
            numbers = counts.model_dump(include={"queued", "running", "completed", "failed", "cancelled", "expired"})
            found[batch_id] = BatchRow(batch_id, state, counts.total, numbers)
        return found


PASSING = (RedisError, QueueError)
