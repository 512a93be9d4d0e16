"""Places in the author's text, packed as in include/host_abi.h: file in bit 31, 19 bits of line, 12 of column."""

from __future__ import annotations

BODY = "body"
HEADER = "header"


def encode(file: str, line: int, column: int) -> int:
    return (file == HEADER) << 31 | (line & 0x7FFFF) << 12 | (column & 0xFFF)


def decode(site: int) -> tuple[str, int] | None:
    """File and line; None where the place is unknown."""
    return (HEADER if site >> 31 else BODY, site >> 12 & 0x7FFFF) if site else None
