"""Identities: a batch is a ULID, a request is its batch and its index.

A retried or resubmitted request keeps its id, so whatever happens to it on the way, its result is stored once.
"""

BATCH_PREFIX = "batch_"


def new_batch_id() -> str:
    """A new batch id, `batch_` and 26 characters that sort by creation time."""
    # Here, because the engine, which makes no ids, is run and measured where the package is not installed.
    from ulid import ULID

    return f"{BATCH_PREFIX}{ULID()}"


def request_id(batch_id: str, index: int) -> str:
    """The id of the request at `index` (from 0, in input order) of a batch."""
    return f"{batch_id}-{index}"


def batch_of(request: str) -> str:
    """The batch id within a request id."""
    return request.rpartition("-")[0]


def index_of(request: str) -> int:
    """The index within a request id."""
    return int(request.rpartition("-")[2])


def bounds_of(batch_id: str) -> tuple[str, str]:
    """Two texts: the ids of the requests of a batch sort at or after the first and before the second, no others do."""
    return f"{batch_id}-", f"{batch_id}{chr(ord('-') + 1)}"
