"""The strict pass: the kernel's types as C++ for OpenCL 2021, whose address spaces are as strict as Metal's.

The executable build lets a cast lead from one address space to another; this pass rejects it, and `double`, threadgroup
variables outside a kernel, plain arithmetic on atomics. What OpenCL has and Metal lacks in the author's text, pointers
without an address space above all, is found in the syntax tree.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from kernels.host.build import cached, digest_of_host
from kernels.host.elements import metal_name
from kernels.host.report import Defect, Finding
from kernels.host.signature import ATTRIBUTES, KernelText
from kernels.host.site import BODY, HEADER
from kernels.host.syntax_tree import complaints
from kernels.host.toolchain import INCLUDE, clang_words
from kernels.host.translate import rewrite_common, uses_tensors

_LANGUAGE = [
    "-x",
    "cl",
    "-cl-std=clc++2021",
    "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64",
    "-cl-single-precision-constant",
    "-ferror-limit",
    "20",
    "-Wno-everything",
    "-Wuninitialized",
    "-Wsometimes-uninitialized",
    "-Wreturn-type",
    "-Wshift-count-overflow",
    "-Wdivision-by-zero",
]
_DIAGNOSTIC = re.compile(r"^([^\s:]+):(\d+):\d+: (?:fatal )?(?:error|warning): (.*)$")
_IN_AUTHORS_TEXT = re.compile(rf"^({BODY}|{HEADER}):(\d+):")

# `S(float a) thread : a(a) {}`: in a cast such as S(value), clang finds no constructor that has an address space.
_QUALIFIED_CONSTRUCTOR = re.compile(r"\)\s*thread(?=\s*:(?!:))")


def strict_findings(kernel: KernelText) -> list[Finding]:
    """What the strict pass says against a kernel; computed once for each text."""
    source = _opencl(kernel)

    def make(folder: Path, output: Path) -> None:
        (folder / "kernel.cl").write_text(source)
        arguments = ["-triple", "spir64-unknown-unknown", *_LANGUAGE, "-ast-dump", "-I", str(INCLUDE), "kernel.cl"]
        tree, words = clang_words(arguments, folder)
        found = [*_diagnostics(words), *(Finding(Defect.STRICT, *complaint) for complaint in complaints(tree))]
        output.write_text(json.dumps([[finding.message, finding.file, finding.line] for finding in found]))

    known = json.loads(cached(f"{digest_of_host()} strict {source}", ".json", make).read_text())
    return [Finding(Defect.STRICT, message, file, line) for message, file, line in known]


def _opencl(kernel: KernelText) -> str:
    """Template values become constants, parameters local variables of a parameterless kernel."""
    lines = []
    for name, value in kernel.template_parameters:
        if isinstance(value, bool):
            lines.append(f"constexpr bool {name} = {str(value).lower()};")
        elif isinstance(value, int):
            lines.append(f"constexpr int {name} = {value};")
        else:
            lines.append(f"typedef {metal_name(value)} {name};")
    for parameter in kernel.parameters:
        pointer = f"host_parameter<{parameter.declarator.rstrip('&*')}*>()"
        given = f"*{pointer}" if parameter.reference else pointer
        lines.append(f"{parameter.declarator} {parameter.name} = {given};")
    lines += [f"const {ATTRIBUTES[attribute]} {attribute} = {{}};" for attribute in kernel.attributes]
    return (
        f"{'#define HOST_TENSORS' if uses_tensors(kernel) else ''}\n"
        '#include "metal_strict.h"\n'
        f'#line 1 "{HEADER}"\n{_rewrite(kernel.header)}\n'
        f'#line 1 "signature"\n__kernel void host_kernel() {{\n' + "\n".join(lines) + "\n"
        f'#line 1 "{BODY}"\n{_rewrite(kernel.source)}\n}}\n'
    )


def _rewrite(source: str) -> str:
    return _QUALIFIED_CONSTRUCTOR.sub(")", rewrite_common(source))


def _diagnostics(words: str) -> list[Finding]:
    """Errors and warnings; one inside the host's headers is placed where the author's text led there.

    Clang tells that way once for all that it says about one instantiation of a template.
    """
    found: list[Finding] = []
    for line in words.splitlines():
        if diagnostic := _DIAGNOSTIC.match(line):
            found.append(Finding(Defect.STRICT, diagnostic.group(3)))
        if found and found[-1].file is None and (place := _IN_AUTHORS_TEXT.match(line)):
            found[-1] = replace(found[-1], file=place.group(1), line=int(place.group(2)))
    for index in range(1, len(found)):
        if found[index].file is None:
            found[index] = replace(found[index], file=found[index - 1].file, line=found[index - 1].line)
    return found
