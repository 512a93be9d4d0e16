"""What becomes of exceptions of an engine."""

import pytest

from api.errors import StorageError
from worker.retry import ErrorKind, final_error, kind_of, tries_again


def test_memory_is_a_kind_of_its_own() -> None:
    assert kind_of(MemoryError()) is ErrorKind.OUT_OF_MEMORY
    assert kind_of(RuntimeError("x")) is ErrorKind.INTERNAL_ERROR


def test_once_more_is_once() -> None:
    assert tries_again(failed_before=False)
    assert not tries_again(failed_before=True)


@pytest.mark.parametrize(
    ("error", "before", "code", "status", "said"),
    [
        (MemoryError(), None, "out_of_memory", 507, "memory ran out on mac-1-7; shorten the prompt"),
        (MemoryError(), "mac-2", "out_of_memory", 507, "on mac-1-7, after an attempt had failed on mac-2; shorten"),
        (KeyError("x"), "mac-1", "internal_error", 500, "KeyError: 'x' (on mac-1-7, after an attempt had failed on"),
        (StorageError("the disk is full"), None, "internal_error", 500, "the disk is full (on mac-1-7)"),
    ],
)
def test_the_second_failure_names_what_and_where(
    error: Exception, before: str | None, code: str, status: int, said: str
) -> None:
    found = final_error(error, "mac-1-7", before)
    assert (found.code, found.status) == (code, status)
    assert said in found.message
