"""Physical lines of a file of text, from its bytes.

Lines end at `\\n` and nowhere else: a `\\r`, U+2028 or U+0085 inside a line is data (Python's text mode and
`splitlines` would cut there). A byte order mark at the start of the file is dropped; elsewhere it is data.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from api.dataset.problem import Problem
from api.errors import InputError

_SKIP_BYTES = 1 << 20
_LINE_END_AND_MARK = len(b"\r\n" + codecs.BOM_UTF8)
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Line:
    """One physical line. number: from 1, blank lines counted. text: with its line end, if it has one."""

    number: int
    text: str

    @property
    def content(self) -> str:
        """The text without its line end: one `\\n`, and one `\\r` before it."""
        return self.text.removesuffix("\n").removesuffix("\r")

    @property
    def blank(self) -> bool:
        return not self.text.strip(" \t\r\n")


@dataclass(frozen=True)
class LongLine:
    """A line above the limit, whose text was not kept. size, limit: in bytes, without the line end."""

    number: int
    size: int
    limit: int

    @property
    def problem(self) -> Problem:
        message = f"{self.size} bytes are more than {self.limit}; the setting max_line_bytes raises the limit"
        return Problem("line_too_long", message)


def physical_lines(stream: BinaryIO, name: str, max_line_bytes: int) -> Iterator[Line | LongLine]:
    """Lines of `stream` in order, blank ones included, holding one at a time.

    Raises InputError that names line and byte (both from 1) where the bytes are not UTF-8, and for a file whose lines
    end in CR alone.
    """
    number = 0
    while raw := stream.readline(max_line_bytes + _LINE_END_AND_MARK):
        number += 1
        if number == 1:
            _refuse_utf16(raw, name)
            raw = raw.removeprefix(codecs.BOM_UTF8)
        size, ended = _measure(stream, raw, max_line_bytes)
        if number == 1 and not ended and b"\r" in raw.removesuffix(b"\r"):
            raise InputError(
                f"{name}: its lines end in CR alone, so the whole file is one line; re-save it with LF line ends"
            )
        if size > max_line_bytes:
            yield LongLine(number, size, max_line_bytes)
        elif raw:
            yield Line(number, _decoded(raw, name, number))


def _measure(stream: BinaryIO, raw: bytes, limit: int) -> tuple[int, bool]:
    """Bytes of the line that starts with `raw`, and whether a line feed ends it; reads on to the end of a long one."""
    size, tail = len(raw), raw[-2:]
    while size > limit and not tail.endswith(b"\n") and (raw := stream.readline(_SKIP_BYTES)):
        size, tail = size + len(raw), (tail + raw)[-2:]
    line_end = len(tail) - len(tail.removesuffix(b"\n").removesuffix(b"\r"))
    return size - line_end, tail.endswith(b"\n")


def _decoded(raw: bytes, name: str, number: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"not UTF-8 at line {number}, byte {error.start + 1} (0x{raw[error.start]:02x})"
        raise InputError(f"{name}: {found}; re-save it as UTF-8") from error


def _refuse_utf16(start: bytes, name: str) -> None:
    """UTF-16 of plain English is valid UTF-8 full of NULs when it has no byte order mark: every second byte is one."""
    head = start[:64]
    even, odd = head[::2], head[1::2]
    without_mark = len(odd) >= 4 and (not any(even)) != (not any(odd))
    if head.startswith(_UTF16_MARKS) or without_mark:
        raise InputError(f"{name}: not UTF-8 at line 1, byte 1, this looks like UTF-16; re-save it as UTF-8")
