"""What a word on the command line names, where it may be a batch or one of its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.ledger.ledger import Ledger
    from api.ledger.records import RecordedRequest


def request_named(ledger: Ledger, word: str) -> RecordedRequest | None:
    """The request of `BATCH-INDEX`, with a batch as `Ledger.resolve` takes it: `latest-0`, or the start of an id.

    None: the word has no index, so it is no request's name. Raises NotFoundError.
    """
    from api.identity import request_id

    batch, hyphen, index = word.rpartition("-")
    if not hyphen or not index.isdecimal():  # no batch id has a hyphen
        return None
    return ledger.request(request_id(ledger.resolve(batch), int(index)))
