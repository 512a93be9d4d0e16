"""Meters a CUDA text: rewrites its unoptimised IR so that each access of the author's text goes through a hook.

CUDA's pointers do not say which memory they point into, so the hook, in `cuda_host.h`, asks the address. Variables of
a thread that are accessed by name have none.
"""

from __future__ import annotations

import re

from kernels.host.instrument import DebugInfo, leading_type, signed, type_bytes

_LOAD = re.compile(r"^(\s+%\S+ = load (?:volatile )?)(.+?), ptr (%\S+), align (\d+)(.*)$")
_STORE = re.compile(r"^(\s+store (?:volatile )?)(.+), ptr (%\S+), align (\d+)(.*)$")
_COPY = re.compile(r"^\s+call void @llvm\.mem(?:cpy|move)\.p0\.p0\.i64\((.*?)\)(, !dbg .*)$")
_ALLOCA = re.compile(r"^\s+(%\S+) = alloca ")


def metered(ir: str) -> str:
    """The IR text with the loads, stores and copies of the author's text hooked."""
    lines = ir.splitlines()
    debug = DebugInfo(lines)
    rewritten: list[str] = []
    own: set[str] = set()
    hooks = 0

    def hooked(action: str, pointer: str, size: str, alignment: str, site: int) -> str:
        nonlocal hooks
        hooks += 1
        arguments = f"ptr {pointer}, i64 {size}, i32 {signed(site)}, i64 {alignment}"
        rewritten.append(f"  %host.{hooks} = call ptr @cuda_host_{action}({arguments})")
        return f"%host.{hooks}"

    for line in lines:
        if line.startswith("define "):
            own = set()
        elif match := _ALLOCA.match(line):
            own.add(match.group(1))
        elif match := _LOAD.match(line) or _STORE.match(line):
            head, operand, pointer, alignment, tail = match.groups()
            site = debug.site(tail)
            if site and pointer not in own:
                action, kind = ("load", operand) if "= load" in head else ("store", leading_type(operand))
                to = hooked(action, pointer, str(type_bytes(kind)), alignment, site)
                line = f"{head}{operand}, ptr {to}, align 1{tail}"
        elif match := _COPY.match(line):
            arguments, tail = match.groups()
            site = debug.site(tail)
            (to, to_aligned), (come, come_aligned), size, _ = (_pointer(one) for one in arguments.split(", "))
            if site:
                to = to if to in own else hooked("store", to, size[0], to_aligned, site)
                come = come if come in own else hooked("load", come, size[0], come_aligned, site)
                line = f"  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {come}, i64 {size[0]}, i1 false){tail}"
        rewritten.append(line)
    return "\n".join(rewritten) + "\n"


def _pointer(argument: str) -> tuple[str, str]:
    """An argument's value, and its alignment if it is a pointer's."""
    aligned = re.search(r"\balign (\d+)", argument)
    return argument.split()[-1], aligned.group(1) if aligned else "1"
