"""From a file to a batch: the whole file is validated, then the ledger has it, then Redis, as far as its window goes.

A crash after the ledger's commit leaves a batch that Redis does not know, or not wholly; `requeue_missing` repairs it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from redis.exceptions import RedisError

from api.choices import Format, Priority
from api.closing import expire_overdue
from api.dataset.reader import Dataset, InputLine, LineError, Validation, validate
from api.errors import InputError, QueueError
from api.identity import new_batch_id
from api.ledger.ledger import Ledger
from api.queue.requests import RequestQueue
from api.schemas import Batch
from api.set_aside import give_up
from api.window import place

Stage = Literal["validating", "recording", "queueing"]
Progress = Callable[[Stage, int], None]
"""Told the stage and how many requests it has behind it."""


class InvalidDataset(InputError):
    """A dataset has bad lines. errors: the first of them. total: requests, good or bad."""

    def __init__(self, path: Path, validation: Validation) -> None:
        self.errors, self.total = validation.errors, validation.total
        first, one = self.errors[0], validation.invalid == 1
        invalid, them = ("is invalid,", "it") if one else ("are invalid, the first", "them")
        found = f"{path}: {validation.invalid} of {self.total} requests {invalid}"
        advice = f"mend {them}" + (f", or leave {them} out with --skip-invalid" if validation.valid else "")
        if not one:  # the sentence tells all of a single one
            self.details = [f"line {error.line}: {error.code}: {error.message}" for error in self.errors]
            self.untold = validation.invalid - len(self.errors)
        super().__init__(f"{found} on line {first.line}: {first.message}; {advice}")


@dataclass(frozen=True)
class Order:
    """A dataset, and how it is to be answered.

    output_path: None is standard output. skip_invalid: bad lines become requests that have failed, and `on_invalid` is
    told of them before anything is entered. expires_seconds: from when the batch is entered until what is open of it
    expires; None = never.
    """

    dataset: Dataset
    model: str
    priority: Priority = "normal"
    output_path: Path | None = None
    output_format: Format = "openai"
    skip_invalid: bool = False
    expires_seconds: float | None = None
    on_invalid: Callable[[Iterable[LineError]], None] | None = None

    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of what makes a command the same one: input, parameters, model and output."""
        dataset, output = self.dataset, _absolute(self.output_path)
        parts = [dataset.sha256(), dataset.template, dict(dataset.defaults), self.model, output]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def submit(ledger: Ledger, queue: RequestQueue, order: Order, on_progress: Progress | None = None) -> Batch:
    """Enter a dataset as a batch and put the first of its requests on the queue; the recorder adds the others.

    Raises what `register_batch` raises, and QueueError, which names the batch, when Redis did not take all of it.
    """
    batch = register_batch(ledger, order, on_progress)
    try:
        place(ledger, queue, batch, _counter(on_progress, "queueing"))
    except (RedisError, QueueError) as error:
        raise QueueError(
            f"batch {batch.id} is safe in the ledger but not wholly on the queue ({error}); "
            f"when Redis is back, run: cidermill resume {batch.id}"
        ) from error
    return batch


def register_batch(ledger: Ledger, order: Order, on_progress: Progress | None = None) -> Batch:
    """Validate a whole dataset and enter it in the ledger; nothing is on the queue yet.

    Raises InvalidDataset with the bad lines (also with skip_invalid when no line is good), InputError for the file as a
    whole, LedgerError, StorageError.
    """
    dataset, output = order.dataset, _absolute(order.output_path)
    sha256, key = dataset.sha256(), order.fingerprint()
    validation = validate(dataset, _counter(on_progress, "validating"))
    if validation.invalid and not (order.skip_invalid and validation.valid):
        raise InvalidDataset(dataset.path, validation)
    if validation.invalid and order.on_invalid is not None:
        order.on_invalid(outcome for outcome in dataset if isinstance(outcome, LineError))
    return ledger.create_batch(
        batch_id=new_batch_id(),
        model=order.model,
        priority=order.priority,
        input_path=str(dataset.path if dataset.path == Path("-") else dataset.path.absolute()),
        input_sha256=sha256,
        fingerprint=key,
        output_path=output,
        output_format=order.output_format,
        expires_at=None if order.expires_seconds is None else time.time() + order.expires_seconds,
        lines=_counted(_unchanged(dataset, sha256), _counter(on_progress, "recording")),
    )


def requeue_missing(ledger: Ledger, queue: RequestQueue, batch_id: str, on_progress: Progress | None = None) -> int:
    """Put back what is open in the ledger and unknown to Redis, under the same ids; returns how many.

    It goes as far as the window of the queue, and the recorder adds the rest. Before that, what is overdue expires, and
    requests that the queue has set aside are failed: they are open in the ledger, and are not to run again. Raises
    NotFoundError, LedgerError (the batch is not wholly entered, or being cancelled), redis.exceptions.RedisError.
    """
    while expire_overdue(ledger, queue):
        pass
    batch = ledger.batch(batch_id)
    give_up(ledger, queue, batch.model)
    return place(ledger, queue, batch, _counter(on_progress, "queueing"))


def _absolute(path: Path | None) -> str | None:
    if path is None:
        return None
    absolute = str(path.absolute())
    try:
        absolute.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"output {absolute!r}: its name is not valid UTF-8; choose another") from error
    return absolute


def _unchanged(dataset: Dataset, sha256: str) -> Iterator[InputLine | LineError]:
    """The lines once more. Raises InputError after them when they were not those that were validated."""
    yield from dataset
    if dataset.sha256() != sha256:
        raise InputError(f"{dataset.path} changed while it was read; submit it again when it is complete")


def _counted(lines: Iterable[InputLine | LineError], told: Callable[[int], None]) -> Iterator[InputLine | LineError]:
    for count, line in enumerate(lines, 1):
        yield line
        told(count)


def _counter(on_progress: Progress | None, stage: Stage) -> Callable[[int], None]:
    return (lambda _: None) if on_progress is None else (lambda count: on_progress(stage, count))
