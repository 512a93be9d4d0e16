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

Three workers of one machine that die at once, because its power was cut, tell as much about it as one does: deaths of
workers that ran at the same time and fell silent within TOGETHER_SECONDS of each other are one event in the row. One
that began after the other had fallen silent, as after each crash of a sick machine, died of something else.

A worker that falls silent and wakes up later, since its machine slept or its network was cut, has died as far as
leases tell. When it finds its own death in the row it withdraws that: a machine that only slept lets itself in again.
One that dies between two requests, or before the start of one, loses nothing and is not counted.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from redis import Redis

KEEP_SECONDS = 7 * 24 * 3600
KEPT = 30
"""Deaths of a row that are kept, the newest."""
MOST_OF_A_REQUEST = 2
TOGETHER_SECONDS = 45.0
"""A lease of the default length."""
UNHEARD_SECONDS = 2.0
"""For so long a worker may have lived on after it was last heard of, which is about once a second. None that is
started after it begins a request so soon."""
LATEST_MS = 10**15
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
    """began, silent: when the worker began the request and when it was last heard of, in milliseconds by the clock of
    its machine."""

    request_id: str
    worker: str
    began: int
    silent: int

    def written(self) -> str:
        return f"{self.request_id} {self.worker} {self.began} {self.silent}"

    def together_with(self, other: "Death") -> bool:
        """Whether both may be of one event."""
        lived = min(self.silent, other.silent) + 1000 * UNHEARD_SECONDS
        at_the_same_time = max(self.began, other.began) <= lived
        near = abs(self.silent - other.silent) <= 1000 * TOGETHER_SECONDS
        apart = self.worker != other.worker and self.request_id != other.request_id
        return apart and at_the_same_time and near


class Row(NamedTuple):
    """deaths: first to last. length: that of the list in Redis, with what is no death."""

    deaths: tuple[Death, ...] = ()
    length: int = 0

    @property
    def events(self) -> list[list[Death]]:
        """The deaths, those of one event together."""
        events: list[list[Death]] = []
        for death in self.deaths:
            same = (event for event in events if all(map(death.together_with, event)))
            if (event := next(same, None)) is not None:
                event.append(death)
            else:
                events.append([death])
        return events

    @property
    def in_a_row(self) -> int:
        """How many events count against the machine: not those of which each request has counted twice."""
        counted: Counter[str] = Counter()
        total = 0
        for event in self.events:
            requests = {death.request_id for death in event}
            total += any(counted[request] < MOST_OF_A_REQUEST for request in requests)
            counted.update(requests)
        return total


def death(request_id: str, worker: str, began: float, silent: float) -> Death:
    """began, silent: see Death, here in seconds since the epoch; what is no time counts as the epoch. Whoever began was
    heard of then, even if it told about itself earlier."""
    return Death(request_id, worker, _milliseconds(began), max(_milliseconds(began), _milliseconds(silent)))


def row_key(host: str) -> str:
    return f"cidermill:deaths:{host}"


def note(pipeline: Any, host: str, death: Death) -> None:
    """Add a death to the row of its machine, as part of a transaction."""
    pipeline.rpush(row_key(host), death.written())
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
    found = [_read(entry.decode("utf-8", "replace")) for entry in entries]
    return Row(tuple(death for death in found if death is not None), length)


def rows(connection: Redis, hosts: Iterable[str]) -> dict[str, Row]:
    """The row of each machine."""
    wanted = sorted(set(hosts))
    with connection.pipeline(transaction=False) as pipeline:
        for host in wanted:
            ask(pipeline, host)
        return {
            host: parse(answer) for host, answer in zip(wanted, pipeline.execute(raise_on_error=False), strict=True)
        }


def withdraw(connection: Redis, host: str, death: Death) -> int:
    """Take back a death of a worker that is alive; how often it was there."""
    return connection.lrem(row_key(host), 0, death.written())


def end_row(connection: Redis, host: str, row: Row) -> None:
    """A request was answered on the machine. A death that was noted since `row` was read stays, with those before."""
    connection.eval(END_ROW, 1, row_key(host), str(row.length))


def end_rows(connection: Redis, hosts: Iterable[str]) -> None:
    """Let machines begin anew."""
    keys = [row_key(host) for host in set(hosts)]
    if keys:
        connection.delete(*keys)


def _read(entry: str) -> Death | None:
    words = entry.split()
    if len(words) != 4 or not all(re.fullmatch(r"[0-9]{1,15}", word) for word in words[2:]):
        return None
    return Death(words[0], words[1], int(words[2]), int(words[3]))


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds) if math.isfinite(seconds) and 0 <= 1000 * seconds < LATEST_MS else 0
