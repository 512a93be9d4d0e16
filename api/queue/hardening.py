"""A job class for which a queue entry is data. Whoever can write to Redis can forge an entry; none may run code.

RQ imports the function, the callbacks and the webhooks that an entry names, and an entry that it cannot read stops
every worker in turn. Here only the fields that a generation needs are read at all, and an entry that does not
parse is set aside. Which function may run is decided by the worker's subclass alone (worker/books.py).
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.utils import as_text

from api.queue.elsewhere import FAILED_FIELD, Failure, read_failure
from api.queue.leases import LeaseRegistry
from api.queue.prefix_key import PREFIX_FIELD, read_key
from api.queue.quarantine import UnreadableJob

JOB_NAME = "cidermill.generate"
"""The only function name that is ever run."""

MAX_ENTRY_BYTES = 64 * 2**20
STORED_FIELDS = (
    "created_at",
    "data",
    "description",
    "ended_at",
    FAILED_FIELD,
    "enqueue_at_front_on_retry",
    "enqueued_at",
    "failure_ttl",
    "last_heartbeat",
    "number_of_retries",
    "origin",
    PREFIX_FIELD,
    "result_ttl",
    "retries_left",
    "started_at",
    "status",
    "timeout",
    "worker_name",
)
READ = f"""
local function read(key)
  if redis.call('TYPE', key).ok ~= 'hash' then return redis.call('EXISTS', key) end
  local fields, size = {{'{"', '".join(STORED_FIELDS)}'}}, 0
  for _, field in ipairs(fields) do size = size + redis.call('HSTRLEN', key, field) end
  if size > {MAX_ENTRY_BYTES} then return size end
  return redis.call('HMGET', key, unpack(fields))
end
"""
"""What other scripts begin with: read(key) gives the stored fields of an entry. In place of them a number: 0 where
there is none, and more where what is there is too large, or is no entry."""
MOST_OF_A_NUMBER = 10**9
"""Of seconds, which are 30 years, and of retries. Beyond that arithmetic of Python and of the server fails."""
_NUMBERS = ("timeout", "result_ttl", "failure_ttl", "retries_left", "number_of_retries")
_REQUIRED_FIELDS = frozenset({"data", "origin", "status", "timeout"})
_VALID_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def valid_id(raw: bytes) -> str | None:
    """The request id that `raw` spells, or None."""
    text = raw.decode("ascii", "replace")
    return text if _VALID_ID.fullmatch(text) else None


class SafeJob(Job):
    """A job that is read with suspicion and that runs nothing."""

    prefix = ""
    """What its prompt begins with (api/queue/prefix_key.py)."""
    failure: Failure | None = None
    """Where an attempt at it has failed (api/queue/elsewhere.py)."""

    @property
    def func(self) -> Any:
        self._refuse()

    @property
    def started_job_registry(self) -> LeaseRegistry:
        return LeaseRegistry(self.origin, connection=self.connection, job_class=type(self), serializer=self.serializer)

    def refresh(self) -> None:
        """Read the known fields. Raises as `take_over` does."""
        self.take_over(cast(Any, self.connection.eval(f"{READ}return read(KEYS[1])", 1, self.key)))

    def take_over(self, found: list[bytes | None] | int) -> None:
        """The known fields, as the script READ found them.

        Raises NoSuchJobError, or UnreadableJob when the entry is damaged or forged.
        """
        if isinstance(found, int) and found > 0:
            raise UnreadableJob(f"job {self.id} is not a hash, or is larger than {MAX_ENTRY_BYTES} bytes")
        values = [] if isinstance(found, int) else found
        fields = {name: value for name, value in zip(STORED_FIELDS, values, strict=False) if value is not None}
        if not fields:
            raise NoSuchJobError(f"no such job: {self.id}")
        self.restore(fields)

    def restore(self, raw_data: Mapping[Any, bytes]) -> None:
        """Take over the known fields; the names of callbacks, webhooks, groups and the like never get in."""
        try:
            named = {as_text(name): value for name, value in raw_data.items()}
            fields = {name: value for name, value in named.items() if name in STORED_FIELDS and value}
            missing = _REQUIRED_FIELDS - fields.keys()
            if missing:
                raise ValueError(f"no {', '.join(sorted(missing))}")
            _check_inflated_size(fields["data"])
            super().restore(fields)
            self.prefix = read_key(fields.get(PREFIX_FIELD, b""))
            self.failure = read_failure(fields.get(FAILED_FIELD, b""))
            numbers = [getattr(self, name) for name in _NUMBERS]
            if any(number is not None and not 0 <= number <= MOST_OF_A_NUMBER for number in numbers):
                raise ValueError("a number out of range")
            if self._status == JobStatus.CREATED or not self.timeout:
                raise ValueError("status or timeout out of range")
        except Exception as error:  # whatever a forged field provokes
            raise UnreadableJob(f"job {self.id}: {type(error).__name__}") from error

    def _refuse(self) -> NoReturn:
        raise PermissionError("the queue entry names a function that this process does not run")


def _check_inflated_size(data: bytes) -> None:
    inflater = zlib.decompressobj()
    try:
        inflater.decompress(data, MAX_ENTRY_BYTES)
    except zlib.error:
        return  # RQ takes such data as it is
    if inflater.unconsumed_tail:
        raise ValueError("data inflate beyond the limit")
