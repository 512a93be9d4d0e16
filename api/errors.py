"""What can go wrong at a border, each with the exit code that the command line ends with.

An error's message is one sentence that names the thing and the way out; the command line prints it as it is.
"""

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (documented in the README)."""

    OK = 0
    INVALID_INPUT = 1
    USAGE = 2
    REQUESTS_FAILED = 3
    QUEUE_UNAVAILABLE = 4
    LEDGER_UNUSABLE = 5
    MODEL_UNUSABLE = 6
    STORAGE_FAILED = 7
    NOT_FOUND = 8
    TEXTS_DIFFER = 9
    INTERRUPTED = 130


class CidermillError(Exception):
    """An error that a user can act on.

    details: a line each, where one sentence cannot name everything. untold: how many more there would be.
    """

    exit_code = ExitCode.INVALID_INPUT
    details: Sequence[str] = ()
    untold: int = 0


class InputError(CidermillError):
    """An input file, or an option, cannot be used."""


class QueueError(CidermillError):
    """Redis cannot be reached, started, or trusted."""

    exit_code = ExitCode.QUEUE_UNAVAILABLE


class LedgerError(CidermillError):
    """The ledger cannot be opened, read or written."""

    exit_code = ExitCode.LEDGER_UNUSABLE


class UnstorableError(LedgerError):
    """The ledger refuses what it was given, and would take something else."""


class ModelError(CidermillError):
    """A model cannot be found, converted or loaded."""

    exit_code = ExitCode.MODEL_UNUSABLE


class StorageError(CidermillError):
    """A file cannot be written: no space, no permission."""

    exit_code = ExitCode.STORAGE_FAILED


class NotFoundError(CidermillError):
    """No batch, request or worker of that name."""

    exit_code = ExitCode.NOT_FOUND
