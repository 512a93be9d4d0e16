"""Deadlines between machines whose clocks differ.

A batch expires by the clock of the machine that has its ledger. On the way into Redis each deadline is set over to the
clock of the Redis server, by which leases go as well, and workers ask that one: a worker's own clock decides nothing.
The setting over is late by as long as the server takes to tell its time, and never early. A server that takes long, as
one whose disk is busy does, is asked again, and the quickest answer counts.
"""

import time
from collections.abc import Sequence

from redis import Redis

from api.queue.leases import server_time
from api.schemas import GenerationRequest

PROMPT_SECONDS, MOST_QUESTIONS = 0.05, 3  # of an answer; to one server


def on_server_clock(connection: Redis, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
    """The requests with their deadlines as the server's clock will show them."""
    if all(request.expires_at is None for request in requests):
        return requests
    ahead = _ahead(connection)
    return [_moved(request, ahead) for request in requests]


def seconds_left(connection: Redis, expires_at: float) -> float:
    """Until a deadline on the server's clock; not above 0 when it has passed."""
    return expires_at - server_time(connection)


def _ahead(connection: Redis) -> float:
    """Seconds by which the server's clock is ahead of this machine's, or some more, but not fewer."""
    answers: list[tuple[float, float]] = []
    while len(answers) < MOST_QUESTIONS and (not answers or min(answers)[0] > PROMPT_SECONDS):
        asked, begun = time.time(), time.monotonic()
        there = server_time(connection)
        answers.append((time.monotonic() - begun, there - asked))
    return min(answers)[1]


def _moved(request: GenerationRequest, seconds: float) -> GenerationRequest:
    if request.expires_at is None:
        return request
    return request.model_copy(update={"expires_at": max(0.0, request.expires_at + seconds)})
