"""Looking at Metal text without parsing it: comments and strings blanked, brackets matched."""

from __future__ import annotations

import re

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)


def blanked(source: str) -> str:
    """The source with comments and strings as spaces: same length, same lines."""
    return _COMMENT_OR_STRING.sub(_spaces, source)


def without_directives(clean: str) -> str:
    """Blanked source with preprocessor lines as spaces too."""
    return _DIRECTIVE.sub(_spaces, clean)


def _spaces(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def line_of(source: str, position: int) -> int:
    """The 1-based line of a position."""
    return source.count("\n", 0, position) + 1


def matching(source: str, opening: int) -> int:
    """The position of the bracket that closes the one at `opening`, or -1."""
    pairs = {"(": ")", "[": "]", "{": "}", "<": ">"}
    opens, closes = source[opening], pairs[source[opening]]
    depth = 0
    for position in range(opening, len(source)):
        if source[position] == opens:
            depth += 1
        elif source[position] == closes:
            depth -= 1
            if depth == 0:
                return position
    return -1


def split_top_level(text: str) -> list[str]:
    """Splits at the commas that stand in no bracket."""
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        if character in "<[({":
            depth += 1
        elif character in ">])}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]
