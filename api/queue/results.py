"""The results stream: workers append events, the recorder of each ledger reads them as a consumer group of its own.

An event leaves the stream only after it was acknowledged, and it is acknowledged after the ledger has committed it:
delivery is at least once, and the ledger makes the effect exactly once. Several ledgers may share one Redis: what
belongs to another one is passed over, and stays for that one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import ResponseError
from rq.job import Job

from api.queue import attempts
from api.queue.fullness import ENTRY_BYTES
from api.queue.steps import NOTHING_KEY, Step
from api.schemas import RequestEvent

RESULTS_STREAM = "cidermill:results"
GROUP = "recorder"
FIELD = "event"
DEAD_CONSUMER_IDLE_MS = 60_000
SCANNED = 1000
MOST_BYTES = 8 * 2**20
"""Of the entries that are read at once, but for the last of them."""
ANSWERED_SECONDS = 60
"""How long the queue entry of an answered request stays, for those that still hold it in a list or under a lease."""

ANSWER = f"""
local entry = redis.call('TYPE', KEYS[2]).ok == 'hash'
if entry and #ARGV[2] <= {ENTRY_BYTES} + redis.call('HSTRLEN', KEYS[2], 'data') then
  redis.call('DEL', '{NOTHING_KEY}')
end
redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2])
if entry then
  local status, worker, queue = unpack(redis.call('HMGET', KEYS[2], 'status', 'worker_name', 'origin'))
  redis.call('HSET', KEYS[2], 'status', 'finished')
  redis.call('EXPIRE', KEYS[2], ARGV[3])
  if status == 'started' and worker ~= ARGV[4] and queue then
    local leases, cursor = 'rq:wip:' .. queue, '0'
    repeat
      local found = redis.call('ZSCAN', leases, cursor, 'MATCH', ARGV[5] .. ':*', 'COUNT', 1000)
      for place = 1, #found[2], 2 do
        redis.call('ZREM', leases, found[2][place])
        redis.call('DEL', 'rq:execution:' .. found[2][place])
      end
      cursor = found[1]
    until cursor == '0'
    redis.call('DEL', '{attempts.attempts_key("")}' .. ARGV[5], '{attempts.lost_key("")}' .. ARGV[5])
  end
end
"""
"""A full server refuses no script that has written already: so it takes a result that is no larger than the entry which
ends with it, and gets free by that. A larger one waits for room. Where another worker runs the request by now, that one
loses its lease, and stops."""

READ = """
local entries, size, start = {}, 0, ARGV[3]
while #entries < tonumber(ARGV[4]) and size < tonumber(ARGV[5]) do
  local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], start)
  local entry = found and found[1][2][1]
  if not entry then break end
  entries[#entries + 1] = entry
  for _, part in ipairs(entry[2] or {}) do size = size + #part end
  if start ~= '>' then start = entry[1] end
end
return entries
"""
SCAN = """
local entries, size, start = {}, 0, ARGV[1]
while #entries < tonumber(ARGV[2]) and size < tonumber(ARGV[3]) do
  local entry = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', 1)[1]
  if not entry then break end
  entries[#entries + 1] = entry
  for _, part in ipairs(entry[2]) do size = size + #part end
  start = '(' .. entry[1]
end
return entries
"""
"""Both end with the entry that reaches the limit of bytes: results of a kilobyte and of megabytes are on one stream."""

Entry = tuple[str, RequestEvent | None]


def publish(connection: Redis, event: RequestEvent) -> None:
    """Append an event; given a pipeline, the event is part of its transaction."""
    connection.xadd(RESULTS_STREAM, dict([field_of(event)]))


def publish_result(connection: Redis, event: RequestEvent) -> None:
    """Append a result, or word of a deadline, and in the same step end its queue entry, whoever holds that by now.

    A worker that dies before it has booked the request, or wakes up when it was handed on, so leaves nothing that
    anybody would run again, or go on with. Published twice, as when the server's answer is lost, it is recorded once.
    """
    arguments = (*field_of(event), str(ANSWERED_SECONDS), event.worker, event.request_id)
    connection.eval(ANSWER, 2, RESULTS_STREAM, Job.key_for(event.request_id), *arguments)


def field_of(event: RequestEvent) -> tuple[str, str]:
    """The one field of an entry of the stream, and its value."""
    return FIELD, event.model_dump_json(exclude_defaults=True)


def answered(connection: Redis) -> set[str]:
    """The requests of which the stream has the end and the ledger has not yet."""
    found: set[str] = set()
    start = "-"
    limits = (str(SCANNED), str(MOST_BYTES))
    while entries := _parsed(cast(Any, connection.eval(SCAN, 1, RESULTS_STREAM, start, *limits))):
        found.update(event.request_id for _, event in entries if event is not None and event.final)
        start = f"({entries[-1][0]}"
    return found


class ResultsReader:
    """Reads the stream as one consumer of a ledger's group.

    consumer: a name that is the same after a restart, so that what was read and not acknowledged is read again.
    started_over: set once the group was gone, and with it what was on the stream.
    """

    def __init__(self, connection: Redis, consumer: str, group: str = GROUP) -> None:
        self._connection = connection
        self._group = group
        self._consumer = consumer
        self._outstanding: set[str] = set()
        self.started_over = False
        self._unread = True  # what an earlier process of the name has read, or what was claimed, may be there
        self._create_group()

    def read(self, *, count: int = 500, block_ms: int = 1000) -> list[Entry]:
        """Up to `count` entries: own unacknowledged ones, with those of dead consumers, then new ones.

        Fewer when they are large: no more are read once they have MOST_BYTES. Waits `block_ms` at most for a new one.
        The event is None when the entry cannot be parsed.
        """
        try:
            entries = self._unacknowledged(count) or self._abandoned(count) or self._new(count, block_ms)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            # The server lost its data, or somebody deleted the stream: start over with whatever comes.
            self._create_group()
            self.started_over = True
            return []
        self._outstanding.update(entry_id for entry_id, _ in entries)
        return entries

    def acknowledge(self, entry_ids: Sequence[str]) -> None:
        """Drop entries from the stream: whatever they said is in the ledger."""
        if not entry_ids:
            return
        with Step(self._connection) as pipeline:
            pipeline.xack(RESULTS_STREAM, self._group, *entry_ids)
            pipeline.xdel(RESULTS_STREAM, *entry_ids)
            pipeline.execute()
        self._outstanding.difference_update(entry_ids)

    def pass_over(self, entry_ids: Sequence[str]) -> None:
        """Leave entries on the stream for the ledger that they belong to."""
        if entry_ids:
            self._connection.xack(RESULTS_STREAM, self._group, *entry_ids)
            self._outstanding.difference_update(entry_ids)

    def _create_group(self) -> None:
        try:
            with Step(self._connection) as pipeline:
                pipeline.xgroup_create(RESULTS_STREAM, self._group, id="0", mkstream=True)
                pipeline.execute()
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _unacknowledged(self, count: int) -> list[Entry]:
        if not self._unread and not self._outstanding:
            return []
        entries = self._group_read("0", count)
        if not entries:
            self._unread = False
            self._outstanding.clear()
        return entries

    def _abandoned(self, count: int) -> list[Entry]:
        claimed: Any = self._connection.xautoclaim(
            RESULTS_STREAM, self._group, self._consumer, min_idle_time=DEAD_CONSUMER_IDLE_MS, count=count, justid=True
        )
        self._unread = bool(claimed)
        return self._unacknowledged(count)

    def _new(self, count: int, block_ms: int) -> list[Entry]:
        if waiting := self._group_read(">", count):
            return waiting
        # For Redis a block of 0 is for ever. The entry that it waited for is unacknowledged from now on.
        block = max(1, block_ms)
        came = self._connection.xreadgroup(self._group, self._consumer, {RESULTS_STREAM: ">"}, count=1, block=block)
        return self._group_read("0", count) if came else []

    def _group_read(self, start: str, count: int) -> list[Entry]:
        arguments = (self._group, self._consumer, start, str(count), str(MOST_BYTES))
        return _parsed(cast(Any, self._connection.eval(READ, 1, RESULTS_STREAM, *arguments)))


def _parsed(entries: Iterable[tuple[bytes, Sequence[bytes] | None]]) -> list[Entry]:
    """Entries as scripts return them: names and values of their fields by turns, None for one that was deleted."""
    return [(entry_id.decode(), _event(fields or ())) for entry_id, fields in entries]


def _event(fields: Sequence[bytes]) -> RequestEvent | None:
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        return RequestEvent.model_validate_json(named.get(FIELD.encode(), b""))
    except ValidationError:
        return None
