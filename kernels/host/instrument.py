"""Meters a kernel: rewrites the text of its unoptimised IR so that each access to memory goes through a hook.

The hook is told pointer, size, place in the source and alignment, and gives the pointer to use: the same one, or, for
an access out of bounds, one that leads nowhere. This happens before any optimisation, so what is counted is what the
source asks for. On demand comparisons get a hook too, which is told both floats. The text is that of the pinned clang;
an access in a form that is not known here raises, rather than go unmetered.
"""

from __future__ import annotations

import re

from kernels.host.site import HEADER, encode

# LLVM's number of an address space, see include/address_spaces.h.
_SPACES = {"1": "device", "2": "constant", "3": "threadgroup"}

_LOAD = re.compile(r"^(\s+%\S+ = load (?:volatile )?)(.+?), ptr addrspace\(([123])\) (.+), align (\d+)(.*)$")
_STORE = re.compile(r"^(\s+store (?:volatile )?)(.+), ptr addrspace\(([123])\) (.+), align (\d+)(.*)$")
_COPY = re.compile(r"^\s+call void @llvm\.mem(?:cpy|move)\.p(\d)\.p(\d)\.i64\((.*)\)(.*)$")
_FILL = re.compile(r"^\s+call void @llvm\.memset\.p([123])\.i64\((.*)\)(.*)$")
_OTHER_ACCESS = re.compile(
    r"^\s+(?:%\S+ = )?(?:(?:load|store) .*, ptr|(?:atomicrmw|cmpxchg) .*ptr|.*@llvm\.(?:mem|masked).*ptr)"
    r" addrspace\([123]\)"
)
_COMPARISON = re.compile(r"^\s+%\S+ = fcmp (?:\w+ )+(float|half|bfloat) (\S+), (\S+?)(,? !dbg .*|)$")
_EXTREME = re.compile(r"^\s+%\S+ = .*call [^@]*float @llvm\.(?:max|min)num\.f32\((float) (\S+), float (\S+)\)(.*)$")
_METADATA = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_DEBUG_LOCATION = re.compile(r"!dbg (!\d+)")

_SCALAR_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}


class UnknownAccess(Exception):
    """The IR has an access to Metal memory that the meter cannot rewrite."""


def instrument(ir: str, comparisons: bool = False) -> str:
    """The IR text with every load, store, copy and fill of device, constant and threadgroup memory hooked.

    comparisons: also those of floats, and what is the greater or smaller of two.
    """
    lines = ir.splitlines()
    return "\n".join([*_Rewriter(DebugInfo(lines), comparisons).rewrite(lines), *_declarations()]) + "\n"


def type_bytes(kind: str) -> int:
    """The size of an IR type, as far as kernels load and store them."""
    if kind in _SCALAR_BYTES:
        return _SCALAR_BYTES[kind]
    if kind.startswith("ptr "):
        return _SCALAR_BYTES["ptr"]
    if match := re.fullmatch(r"i(\d+)", kind):
        return (int(match.group(1)) + 7) // 8
    if match := re.fullmatch(r"<(\d+) x (.+)>", kind):
        count, element = int(match.group(1)), match.group(2)
        return (count + 7) // 8 if element == "i1" else count * type_bytes(element)
    if match := re.fullmatch(r"\[(\d+) x (.+)\]", kind):
        return int(match.group(1)) * type_bytes(match.group(2))
    raise UnknownAccess(f"the size of IR type {kind} is not known to the meter")


def _declarations() -> list[str]:
    return [
        *(
            f"declare ptr addrspace({number}) @host_{action}_{space}(ptr addrspace({number}), i64, i32, i64)"
            for number, space in _SPACES.items()
            for action in ("load", "store")
        ),
        "declare void @host_compare(float, float, i32)",
    ]


def leading_type(operand: str) -> str:
    """The type in front of a value: `<4 x float>` of `<4 x float> %v`."""
    depth = 0
    for position, character in enumerate(operand):
        if character in "<[{":
            depth += 1
        elif character in ">]}":
            depth -= 1
        elif character == " " and depth == 0:
            return operand[:position]
    raise UnknownAccess(f"no type in front of {operand}")


def signed(site: int) -> int:
    """An i32 of the same bits."""
    return site - (1 << 32) if site >> 31 else site


class DebugInfo:
    """Places in the author's text, from the metadata at the end of the module."""

    def __init__(self, lines: list[str]) -> None:
        self._nodes: dict[str, tuple[str, str]] = {}
        for line in lines:
            if match := _METADATA.match(line):
                self._nodes[match.group(1)] = (match.group(2), match.group(3))

    def site(self, instruction_tail: str) -> int:
        """The site of an instruction; 0 for the host's own functions."""
        match = _DEBUG_LOCATION.search(instruction_tail)
        if match is None or self._nodes.get(match.group(1), ("",))[0] != "DILocation":
            return 0
        location = self._nodes[match.group(1)][1]
        file = self._file(self._field(location, "scope"))
        if file not in ("body", HEADER):
            return 0
        return encode(file, int(self._field(location, "line")), int(self._field(location, "column") or 0))

    def _file(self, scope: str) -> str:
        file = self._nodes.get(self._field(self._nodes.get(scope, ("", ""))[1], "file"), ("", ""))[1]
        return self._field(file, "filename").strip('"')

    @staticmethod
    def _field(node: str, name: str) -> str:
        match = re.search(rf'\b{name}: ("[^"]*"|[^,]+)', node)
        return match.group(1) if match else ""


class _Rewriter:
    def __init__(self, debug: DebugInfo, comparisons: bool) -> None:
        self._debug = debug
        self._comparisons = comparisons
        self._hooks = 0

    def rewrite(self, lines: list[str]) -> list[str]:
        rewritten: list[str] = []
        for line in lines:
            if self._comparisons and (match := _COMPARISON.match(line) or _EXTREME.match(line)):
                rewritten += self._comparison(match)
            rewritten.extend(self._line(line) if "addrspace(" in line or "@llvm.mem" in line else [line])
        return rewritten

    def _comparison(self, match: re.Match[str]) -> list[str]:
        kind, *values, tail = match.groups()
        hook = []
        if kind != "float":
            wide = [f"%host.{self._hooks + i}" for i in (1, 2)]
            self._hooks += 2
            hook = [f"  {name} = fpext {kind} {value} to float" for name, value in zip(wide, values, strict=True)]
            values = wide
        a, b = values
        return [*hook, f"  call void @host_compare(float {a}, float {b}, i32 {signed(self._debug.site(tail))})"]

    def _line(self, line: str) -> list[str]:
        if match := _LOAD.match(line):
            return self._access("load", match, match.group(2))
        if match := _STORE.match(line):
            return self._access("store", match, leading_type(match.group(2)))
        if match := _COPY.match(line):
            destination, source, arguments, tail = match.groups()
            to, come, size = (argument.split()[-1] for argument in arguments.split(", ")[:3])
            hooks = []
            if destination in _SPACES:
                hook, hooked = self._hook("store", destination, to, size, 1, tail)
                hooks.append(hook)
                line = line.replace(f" {to},", f" {hooked},", 1)
            if source in _SPACES:
                hook, hooked = self._hook("load", source, come, size, 1, tail)
                hooks.append(hook)
                head, separator, rest = line.partition(", ")
                line = head + separator + rest.replace(f" {come},", f" {hooked},", 1)
            return [*hooks, line]
        if match := _FILL.match(line):
            space, arguments, tail = match.groups()
            to, _, size = (argument.split()[-1] for argument in arguments.split(", ")[:3])
            hook, hooked = self._hook("store", space, to, size, 1, tail)
            return [hook, line.replace(f" {to},", f" {hooked},", 1)]
        if _OTHER_ACCESS.match(line):
            raise UnknownAccess(f"the meter does not know this access: {line.strip()}")
        return [line]

    def _access(self, action: str, match: re.Match[str], kind: str) -> list[str]:
        head, operand, space, pointer, alignment, tail = match.groups()
        hook, hooked = self._hook(action, space, pointer, str(type_bytes(kind)), int(alignment), tail)
        return [hook, f"{head}{operand}, ptr addrspace({space}) {hooked}, align 1{tail}"]

    def _hook(self, action: str, space: str, pointer: str, size: str, alignment: int, tail: str) -> tuple[str, str]:
        self._hooks += 1
        hooked = f"%host.{self._hooks}"
        site = signed(self._debug.site(tail))
        arguments = f"ptr addrspace({space}) {pointer}, i64 {size}, i32 {site}, i64 {alignment}"
        call = f"  {hooked} = call ptr addrspace({space}) @host_{action}_{_SPACES[space]}({arguments})"
        return call, hooked
