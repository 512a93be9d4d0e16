"""What failed, in words: all of it for a file, the beginning for people."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
_NO_MEMORY = re.compile(
    r"unable to allocate|failed to allocate|attempting to allocate|out ?of ?memory|insufficient memory|bad_alloc"
    r"|resource limit|MemoryError",
    re.IGNORECASE,
)
"""What MLX, its drivers and Python say where memory ran out: for good, for now, or for so large an array."""

_FAULT_OF_ANOTHER = re.compile("InnocentVictim|SubmissionsIgnored")
"""What Metal says of work that it discarded because other work had faulted the GPU."""
_TOO_FEW_THREADS = "maximum allowed threads per threadgroup"
"""What MLX says of a Metal kernel that this GPU grants fewer threads than it was written for."""


def in_words(error: Exception) -> str:
    """The kind of error and its whole message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def says_no_memory(complaint: str) -> bool:
    """Whether memory ran out, by what an error says."""
    return _NO_MEMORY.search(complaint) is not None


def says_another_failed(complaint: str) -> bool:
    """Whether it says nothing of the kernel, but that the GPU was taken from it after a fault of other work."""
    return _FAULT_OF_ANOTHER.search(complaint) is not None


def says_too_few_threads(complaint: str) -> bool:
    """Whether a kernel cannot be launched on this GPU, and nothing is wrong with it, by what an error says."""
    return _TOO_FEW_THREADS in complaint


def excerpt(text: str) -> str:
    """The beginning of what may be a compiler's log of any length, without characters that a terminal obeys."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:MOST_CHARACTERS])
    return shown if len(text) <= MOST_CHARACTERS else f"{shown} ..."
