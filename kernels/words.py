"""What failed, in words: all of it for a file, the beginning for people."""

from __future__ import annotations

MOST_CHARACTERS = 300


def in_words(error: Exception) -> str:
    """The kind of error and its whole message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def excerpt(text: str) -> str:
    """The beginning of what may be a compiler's log of any length, without characters that a terminal obeys."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:MOST_CHARACTERS])
    return shown if len(text) <= MOST_CHARACTERS else f"{shown} ..."
