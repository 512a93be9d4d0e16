"""The queue of the runner and of the recorders: some requests have a second, and a turn ends soon with its process."""

from datetime import datetime

from rq.job import Job

from api.queue import marks
from api.queue.requests import RequestQueue
from api.queue.safe_queue import SafeQueue
from api.schemas import GenerationRequest

OVERDUE_TOKENS, OVERDUE_SECONDS = 1000, 1

marks.TURN_SECONDS = 2.0


class TimedQueue(RequestQueue):
    """Gives an attempt at OVERDUE_TOKENS no more than OVERDUE_SECONDS, whoever puts the request there."""

    def _job(self, queue: SafeQueue, request: GenerationRequest, at: datetime) -> tuple[Job, dict[str, str]]:
        job, further = super()._job(queue, request, at)
        if request.max_tokens == OVERDUE_TOKENS:
            job.timeout = OVERDUE_SECONDS
        return job, further
