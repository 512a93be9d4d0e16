"""Log lines on standard error. What is in Redis can be in them, so a terminal must be able to show them safely."""

from __future__ import annotations

import logging

from cli.output import printable


class PrintableFormatter(logging.Formatter):
    """The message, control characters shown and not obeyed."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_printably() -> None:
    """Warnings and errors of all libraries, one handler for all."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
