"""Deaths in a row of a machine: when workers die on it one after the other, it takes itself out.

Whoever ends the lease of a dead worker notes the death in the row of that worker's machine, beside the request's own
count (api/queue/attempts.py). A request that a machine answers ends its row. The machine's workers read the row on
their pulse, a new one too; at three deaths (the setting `deaths_in_a_row`) they take no more requests, until an
operator's `resume` ends the row. An answer that a worker still had in the making does not: it says nothing of the
next request. A row that no worker of its machine reads is forgotten after a week.

Which one is to blame? A single death does not tell whether the request kills workers or the machine does, so it counts
for both, and each has its own count. A request that has killed max_attempts workers, anywhere, is poison and set aside.
In a machine's row a request counts for two deaths at most, the count at which it is poison by itself, even where it
may kill more: no request alone takes a machine out, it takes a second one that is not answered either. Poison among
good requests takes out none, as each answer begins the row anew. Where one request after the other kills, on a machine
or on all of them, a sick machine and a run of poison look the same; then it is better to stop and to say so than to
lose every request that waits.

A worker that falls silent and wakes up later has died as far as leases tell. One that dies between two requests, or
before the start of one, loses nothing and is not counted.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from redis import Redis

KEEP_SECONDS = 7 * 24 * 3600
KEPT = 30
"""Deaths of a row that are kept, the newest."""
MOST_OF_A_REQUEST = 2
MOST_BYTES = 512
"""Of one death: a longer entry is not ours."""

ROW = """
local found = {redis.call('LLEN', KEYS[1])}
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], -1)) do
  if #entry <= tonumber(ARGV[2]) then found[#found + 1] = entry end
end
return found
"""
END_ROW = "if redis.call('LLEN', KEYS[1]) == tonumber(ARGV[1]) then return redis.call('DEL', KEYS[1]) end"


class Death(NamedTuple):
    request_id: str
    worker: str


class Row(NamedTuple):
    """deaths: first to last. length: that of the list in Redis, with what is no death."""

    deaths: tuple[Death, ...] = ()
    length: int = 0

    @property
    def in_a_row(self) -> int:
        """How many of the deaths count against the machine."""
        by_request = Counter(death.request_id for death in self.deaths)
        return sum(min(times, MOST_OF_A_REQUEST) for times in by_request.values())


def row_key(host: str) -> str:
    return f"cidermill:deaths:{host}"


def note(pipeline: Any, host: str, death: Death) -> None:
    """Add a death to the row of its machine, as part of a transaction."""
    pipeline.rpush(row_key(host), f"{death.request_id} {death.worker}")
    pipeline.ltrim(row_key(host), -KEPT, -1)
    pipeline.expire(row_key(host), KEEP_SECONDS)


def ask(pipeline: Any, host: str) -> None:
    """Read the row of a machine, as part of a pipeline; `parse` takes its answer."""
    pipeline.eval(ROW, 1, row_key(host), -KEPT, MOST_BYTES)


def parse(answer: Any) -> Row:
    """What is no death, or no list of them, is left out."""
    if not isinstance(answer, list):
        return Row()
    length, *entries = answer
    words = [entry.decode("utf-8", "replace").split() for entry in entries]
    return Row(tuple(Death(*pair) for pair in words if len(pair) == 2), length)


def rows(connection: Redis, hosts: Iterable[str]) -> dict[str, Row]:
    """The row of each machine."""
    wanted = sorted(set(hosts))
    with connection.pipeline(transaction=False) as pipeline:
        for host in wanted:
            ask(pipeline, host)
        return {
            host: parse(answer) for host, answer in zip(wanted, pipeline.execute(raise_on_error=False), strict=True)
        }


def end_row(connection: Redis, host: str, row: Row) -> None:
    """A request was answered on the machine. A death that was noted since `row` was read stays, with those before."""
    connection.eval(END_ROW, 1, row_key(host), str(row.length))


def end_rows(connection: Redis, hosts: Iterable[str]) -> None:
    """Let machines begin anew."""
    keys = [row_key(host) for host in set(hosts)]
    if keys:
        connection.delete(*keys)
