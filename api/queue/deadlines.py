"""Deadlines between machines whose clocks differ.

A batch expires by the clock of the machine that has its ledger. On the way into Redis each deadline is set over to the
clock of the Redis server, by which leases go as well, and workers ask that one: a worker's own clock decides nothing.
The setting over is late by as long as the server takes to tell its time, and never early.
"""

import time
from collections.abc import Sequence

from redis import Redis

from api.queue.leases import server_time
from api.schemas import GenerationRequest


def on_server_clock(connection: Redis, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
    """The requests with their deadlines as the server's clock will show them."""
    if all(request.expires_at is None for request in requests):
        return requests
    here = time.time()
    ahead = server_time(connection) - here
    return [_moved(request, ahead) for request in requests]


def seconds_left(connection: Redis, expires_at: float) -> float:
    """Until a deadline on the server's clock; not above 0 when it has passed."""
    return expires_at - server_time(connection)


def _moved(request: GenerationRequest, seconds: float) -> GenerationRequest:
    if request.expires_at is None:
        return request
    return request.model_copy(update={"expires_at": max(0.0, request.expires_at + seconds)})
