"""Queue entries that cannot be read: set aside, reported as failed requests, and in nobody's way."""

import logging
from typing import Any

from rq.exceptions import NoSuchJobError

logger = logging.getLogger("cidermill.queue")

QUARANTINE_KEY = "cidermill:quarantine"
"""A hash: id of an unreadable entry -> name of the queue it was found in."""


class UnreadableJob(NoSuchJobError):
    """The entry is damaged or forged; it must not be run, nor stop anybody."""


def quarantine(connection: Any, job_id: str, queue_name: str) -> None:
    """Set an unreadable entry aside (connection: or a pipeline)."""
    logger.warning("the entry of request %s in queue %s is damaged or forged; set aside", job_id, queue_name)
    connection.hset(QUARANTINE_KEY, job_id, queue_name)
