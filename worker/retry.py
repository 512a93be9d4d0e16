"""What becomes of a request whose attempt did not end with an answer, by the kind of what went wrong.

what went wrong             who says so                     then
a bad request               an error in the engine's        never again: the error is its result
                            result, a payload that is none
it ran too long             the run's deadline              never again: `request_timeout`
out of memory               MemoryError of the engine       once more, on another machine
any other exception of the  the exception                   once more, on another machine: the same machine may be
engine                                                      broken, and would fail one request after the other
its worker fell silent      the lease that ended            again, until it has lost max_attempts workers; then it is
                                                            set aside as poison, with their names (`worker_lost`)
its worker stops            the worker                      again; the attempt does not count
the lease was lost          Redis                           nothing: another worker has it; an answer is still told

Once more is once in all, whatever went wrong the first time: the second exception is the result, `out_of_memory` or
`internal_error`. So a request has at most max_attempts + 1 attempts that count. Another machine is one on which a
worker of the same model lives; where there is none, the same one tries again at once (api/queue/elsewhere.py).
"""

from enum import StrEnum

from api.errors import CidermillError
from api.schemas import RequestError


class ErrorKind(StrEnum):
    """Of exceptions of the engine; the values are the codes of results, and reasons in the history."""

    OUT_OF_MEMORY = "out_of_memory"
    INTERNAL_ERROR = "internal_error"


def kind_of(error: Exception) -> ErrorKind:
    return ErrorKind.OUT_OF_MEMORY if isinstance(error, MemoryError) else ErrorKind.INTERNAL_ERROR


def tries_again(failed_before: bool) -> bool:
    """Whether a request is tried once more after an exception of the engine."""
    return not failed_before


def final_error(error: Exception, worker: str, failed_before_on: str | None) -> RequestError:
    """What the request ends with after its second exception. failed_before_on: the machine of the first."""
    kind = kind_of(error)
    places = worker if failed_before_on is None else f"{worker}, after an attempt had failed on {failed_before_on}"
    if kind is ErrorKind.OUT_OF_MEMORY:
        message = f"memory ran out on {places}; shorten the prompt, lower max_tokens or n, or take a larger machine"
        return RequestError(code=kind, message=message, status=507)
    said = str(error) if isinstance(error, CidermillError) else f"{type(error).__name__}: {error}"
    return RequestError(code=kind, message=f"{said} (on {places})", status=500)
