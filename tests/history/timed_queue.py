"""The queue of the runner and of the recorders: some requests have a second, and a turn ends soon with its process."""

from rq.queue import EnqueueData

from api.queue import marks
from api.queue.requests import RequestQueue
from api.schemas import GenerationRequest

OVERDUE_TOKENS, OVERDUE_SECONDS = 1000, 1

marks.TURN_SECONDS = 2.0


class TimedQueue(RequestQueue):
    """Gives an attempt at OVERDUE_TOKENS no more than OVERDUE_SECONDS, whoever puts the request there."""

    def _entry(self, request: GenerationRequest) -> EnqueueData:
        entry = super()._entry(request)
        return entry._replace(timeout=OVERDUE_SECONDS) if request.max_tokens == OVERDUE_TOKENS else entry
