"""A request on which an attempt failed through no fault of its own goes back with the name of that machine on it.

Whoever takes entries from a queue passes over those that failed on its own machine lately, as long as a worker of the
same model lives on another one. What is passed over goes back to the head, where the others look first.
"""

from typing import NamedTuple

from redis import Redis

from api.queue.leases import server_time
from api.queue.presence import live_workers

FAILED_FIELD = "failed_on"
"""Of a request's hash in Redis: the time on that server's clock, and the machine."""
AVOIDED_SECONDS = 300.0
"""How long a machine leaves a request that failed on it to others. Then it may be that none of them has room for it."""
MOST_PASSED_OVER = 16
"""In one look. A machine on which that many failed lately takes nothing that is behind them."""
LONGEST_NAME = 255
NAMELESS = "nameless"


class Failure(NamedTuple):
    """at: seconds since the epoch, on the clock of the Redis server. machine: as WorkerInfo.host."""

    at: float
    machine: str

    def written(self) -> str:
        """What `read_failure` reads, whatever the machine is called: else the request would be tried without end."""
        return f"{int(self.at)} {_name(self.machine)}"


def read_failure(raw: bytes) -> Failure | None:
    """What the field of an entry holds; None for whatever is none."""
    at, _, machine = raw.decode("utf-8", "replace").partition(" ")
    if at.isdecimal() and len(at) < 16 and 0 < len(machine) <= LONGEST_NAME:
        return Failure(float(at), machine)
    return None


class Avoidance:
    """What the workers of a model on one machine leave to others."""

    def __init__(self, connection: Redis, model: str, machine: str) -> None:
        self._connection, self._model, self._machine = connection, model, _name(machine)

    def avoids(self, failure: Failure | None) -> bool:
        """Whether a request that failed so is to be passed over here."""
        if failure is None or failure.machine != self._machine:
            return False
        age = server_time(self._connection) - failure.at
        return 0 <= age < AVOIDED_SECONDS and self._others_serve()

    def _others_serve(self) -> bool:
        return any(
            worker.model == self._model and _name(worker.host) != self._machine and worker.serves
            for worker in live_workers(self._connection)
        )


def _name(machine: str) -> str:
    return machine[:LONGEST_NAME] or NAMELESS
