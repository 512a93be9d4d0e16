"""What can happen to a request, as its history names it."""

from enum import StrEnum


class EventKind(StrEnum):
    """Of an attempt: started, handed back (it does not count), requeued (it came to nothing). Once for each request:
    queued, and one of finished, failed, cancelled and expired. Late: an end that came after that, and changed nothing.
    """

    QUEUED = "queued"
    STARTED = "started"
    HANDED_BACK = "handed_back"
    REQUEUED = "requeued"
    FINISHED = "finished"
    LATE = "late"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
