"""What neither compiler sees: text that Metal, or MLX on the way there, takes differently from clang."""

from __future__ import annotations

import re

from kernels.host.report import Defect, Finding
from kernels.host.signature import KernelText
from kernels.host.site import BODY, HEADER
from kernels.host.text import blanked, line_of

_VECTOR = r"(?:metal::)?(?:(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]|vec\s*<[^<>]*>)"
_VECTOR_CAST = re.compile(rf"(?<![\w>\]])\(\s*(?:const\s+)?{_VECTOR}\s*\)\s*(?=[\w(+~!-])")
_UNSUFFIXED = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE][+-]?\d))(?:[eE][+-]?\d+)?(?![\w.])")
_LONG_LONG = re.compile(r"\b(?:un)?(?:signed\s+)?long\s+long\b")
_NON_ASCII = re.compile(r"[^\x00-\x7f]")

_RULES = (
    (_VECTOR_CAST, True, "C-style cast to a vector: Metal converts, clang keeps the bits; write {0}(...) instead"),
    (_UNSUFFIXED, True, "{0} has no suffix: a float in Metal, a double elsewhere; write {0}f"),
    (_LONG_LONG, True, "Metal has no {0}: long has 64 bits there"),
    (_NON_ASCII, False, "{0!r} is not ASCII: MLX hands the text over as an ASCII string, comments included"),
)


def lint(kernel: KernelText) -> list[Finding]:
    """Findings in the author's header and body, in order of lines."""
    return [*_lint(kernel.header, HEADER), *_lint(kernel.source, BODY)]


def _lint(source: str, file: str) -> list[Finding]:
    found = []
    code = blanked(source)
    for pattern, code_only, message in _RULES:
        for match in pattern.finditer(code if code_only else source):
            words = match.group().strip("() \t\n")
            found.append(Finding(Defect.LINT, message.format(words), file, line_of(source, match.start())))
    return sorted(found, key=lambda finding: finding.line or 0)
