"""What one event does to one request: values in, values out.

An old notice can arrive after a newer one, so a move needs more than a legal pair of states: only the worker that runs
a request can hand it back, and an older attempt does not start over a newer one.
"""

from dataclasses import dataclass, field

from api.schemas import RequestEvent
from api.states import RequestState, may_move

FINISHED, LATE, EXPIRED = "finished", "late", "expired"


@dataclass
class Standing:
    """Where a request stands; `changed` once an event has moved it out of the state that it was found in."""

    batch_id: str
    state: RequestState
    attempts: int
    worker: str | None
    started_at: float | None
    finished_at: float | None = None
    changed: bool = False
    found_in: RequestState = field(init=False)

    def __post_init__(self) -> None:
        self.found_in = self.state

    def start(self, event: RequestEvent) -> None:
        superseded = self.state is RequestState.RUNNING and event.attempt < self.attempts
        if may_move(self.state, RequestState.RUNNING) and not superseded:
            self.worker, self.attempts, self.started_at = event.worker, event.attempt, event.at
            self._move(RequestState.RUNNING)

    def hand_back(self, event: RequestEvent) -> None:
        if self._runs(event) and may_move(self.state, RequestState.QUEUED):
            self.worker = self.started_at = None
            self._move(RequestState.QUEUED)

    def finish(self, event: RequestEvent, final: RequestState) -> bool:
        """Whether this is what decides the request. The start of a result is derived where no notice told it."""
        if not may_move(self.state, final):
            return False
        if not self._runs(event):
            self.started_at = None if event.stats is None else event.at - event.stats.wall_ms / 1000
        self.worker, self.attempts, self.finished_at = event.worker, event.attempt, event.at
        self._move(final)
        return True

    def close(self, final: RequestState, at: float) -> bool:
        """Move to a final state without a worker's word; whether that was still possible."""
        if not may_move(self.state, final):
            return False
        self.finished_at = at
        self._move(final)
        return True

    def _runs(self, event: RequestEvent) -> bool:
        running = (RequestState.RUNNING, event.worker, event.attempt)
        return (self.state, self.worker, self.attempts) == running

    def _move(self, to: RequestState) -> None:
        assert may_move(self.state, to)
        self.state, self.changed = to, True
