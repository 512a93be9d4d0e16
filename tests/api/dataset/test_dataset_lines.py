"""Lines from bytes: cases 2 and 3 of odd inputs, and lines too long to hold."""

import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.dataset.lines import Line, LongLine, physical_lines
from api.errors import InputError


def lines_of(data: bytes, limit: int = 1000) -> list[Line | LongLine]:
    return list(physical_lines(io.BytesIO(data), "in.jsonl", limit))


def contents(data: bytes) -> list[tuple[int, str]]:
    return [(line.number, line.content) for line in lines_of(data) if isinstance(line, Line)]


def test_lines_end_at_line_feeds_only() -> None:
    data = "a\u2028b\x85c\x0bd\x0ce\r\n\r\nd".encode()
    assert contents(data) == [(1, "a\u2028b\x85c\x0bd\x0ce"), (2, ""), (3, "d")]


def test_one_carriage_return_is_part_of_the_line_end() -> None:
    assert contents(b"a\r\r\nb\rc\n") == [(1, "a\r"), (2, "b\rc")]


def test_byte_order_mark_is_dropped_at_the_start_only() -> None:
    mark = b"\xef\xbb\xbf"
    assert contents(mark + b"a\n" + mark + b"b\n") == [(1, "a"), (2, "\ufeffb")]
    assert lines_of(mark) == []


def test_blank_lines_are_known_as_such() -> None:
    assert [line.blank for line in lines_of(b"\n \t\r\nx\n\n") if isinstance(line, Line)] == [True, True, False, True]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_named(encoding: str) -> None:
    with pytest.raises(InputError, match=r"^in\.jsonl: not UTF-8 at line 1, byte 1, .*UTF-16; re-save it as UTF-8$"):
        lines_of('{"prompt":"hi"}\n'.encode(encoding))


def test_latin1_is_named_with_line_and_byte() -> None:
    with pytest.raises(InputError, match=r"not UTF-8 at line 1, byte 15 \(0xe9\); re-save it as UTF-8"):
        lines_of(b'{"prompt":"caf\xe9"}\n')
    with pytest.raises(InputError, match=r"not UTF-8 at line 3, byte 2 \(0xff\)"):
        lines_of(b"ok\n\na\xff\n")


@pytest.mark.parametrize("data", [b"a\rb", b"a\rb\r", b"\xef\xbb\xbfa\rb\r"])
def test_a_file_with_carriage_returns_only_is_named(data: bytes) -> None:
    with pytest.raises(InputError, match="end in CR alone, so the whole file is one line; re-save it with LF"):
        lines_of(data)


def test_a_lone_carriage_return_at_the_end_is_a_line_end() -> None:
    assert contents(b"a\r") == [(1, "a")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_limit_counts_the_text_alone(mark: bytes, end: bytes) -> None:
    assert contents(mark + b"x" * 1000 + end) == [(1, "x" * 1000)]
    assert lines_of(mark + b"x" * 1001 + end) == [LongLine(1, 1001, 1000)]


def test_a_long_line_is_measured_and_the_next_one_read() -> None:
    data = b"x" * 3_000_001 + b"\r\n" + b"next\n"
    assert lines_of(data) == [LongLine(1, 3_000_001, 1000), Line(2, "next\n")]


def test_a_long_line_is_not_held_in_memory() -> None:
    stream = io.BytesIO(b"x" * (64 << 20))
    tracemalloc.start()
    try:
        assert list(physical_lines(stream, "in.jsonl", 1000)) == [LongLine(1, 64 << 20, 1000)]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@given(st.lists(st.text().filter(lambda text: not set(text) & {"\n", "\r", "\0"} and "\ufeff" not in text), min_size=1))
def test_any_text_without_line_ends_comes_back(texts: list[str]) -> None:
    data = "".join(text + "\n" for text in texts).encode()
    assert contents(data) == list(enumerate(texts, 1))
