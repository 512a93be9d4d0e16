"""What no error of clang's tells of the author's text, but its syntax tree: what C++ for OpenCL has and Metal lacks.

The tree is the text of `-ast-dump`, a node a line, children deeper than their parents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels.host.site import BODY, HEADER

Complaint = tuple[str, str, int]
"""Message, file and line."""

# The first node behind the host's own headers.
_BEGIN = re.compile(rf"^[|` -]*\w+ 0x\w+ (?:prev 0x\w+ )?<(?:[^<>]*, )?(?:{HEADER}|signature):\d", re.MULTILINE)
_NODE = re.compile(r"^([|` -]*)(\w+) (0x\w+) (.*)$")
# Positions of a node: `<body:1:1, line:2:7> col:3`. A file or line is named only where it changes.
_POSITION = re.compile(r"[<>,] ?([^<>,:]+):(\d+)")
_TYPE = re.compile(r"'([^']*)'(?::'([^']*)')?")
_SPACED = re.compile(r"__(?:global|constant|local|private|generic)\b")
_NAMED = re.compile(r"\b([A-Za-z_]\w*|operator\S+) '")
_CALLED = re.compile(r"(?:Function|CXXMethod|->\w+|\.\w+) (0x\w+)")
_PREVIOUS = re.compile(r"^prev (0x\w+)")

_VARIABLES = ("VarDecl", "ParmVarDecl", "FieldDecl")
_FUNCTIONS = ("FunctionDecl", "CXXMethodDecl", "CXXConversionDecl")
_LACKING = {"GotoStmt": "goto", "IndirectGotoStmt": "goto", "GCCAsmStmt": "asm"}


@dataclass(frozen=True)
class Node:
    """A line of the tree, and where in the text it stands."""

    depth: int
    kind: str
    address: str
    rest: str
    file: str
    line: int
    parent: Node | None

    @property
    def name(self) -> str:
        match = _NAMED.search(self.rest)
        return match.group(1) if match else ""

    @property
    def type(self) -> str:
        """As it is spelled, without its aliases resolved."""
        match = _TYPE.search(self.rest)
        return match.group(1) if match else ""

    @property
    def element(self) -> str:
        """The type itself, without const and address space."""
        match = _TYPE.search(self.rest)
        spelled = (match.group(2) or match.group(1)) if match else ""
        return " ".join(word for word in spelled.split() if word != "const" and not _SPACED.match(word))

    def says(self, word: str) -> bool:
        """Whether clang puts this word beside the node, outside its types."""
        return re.search(rf"\b{word}\b", re.sub(r"'[^']*'", "", self.rest)) is not None


def complaints(tree: str) -> list[Complaint]:
    """Against the author's text, each once."""
    nodes = list(_nodes(tree))
    own = [node for node in nodes if node.file in (HEADER, BODY)]
    found = [complaint for rule in _RULES for complaint in rule(own)]
    found += _recursions(nodes)
    return list(dict.fromkeys(found))


def _nodes(tree: str) -> Iterator[Node]:
    begin = _BEGIN.search(tree)
    file, line = "", 0
    above: list[Node] = []
    for text in tree[begin.start() :].splitlines() if begin else []:
        match = _NODE.match(text)
        if match is None:
            continue
        branches, kind, address, rest = match.groups()
        for changed, number in _POSITION.findall(rest.partition("'")[0]):
            if changed != "col":
                line = int(number)
                file = file if changed == "line" else changed
        while above and above[-1].depth >= len(branches):
            above.pop()
        above.append(Node(len(branches), kind, address, rest, file, line, above[-1] if above else None))
        yield above[-1]


def _without_address_space(nodes: list[Node]) -> Iterator[Complaint]:
    """OpenCL makes such a pointer generic; in a template it has no space before it is instantiated.

    Metal takes it for one to thread memory, and from version 4.1 on for a generic one (MLX's pull request 3963).
    """
    for node in nodes:
        if node.kind not in _VARIABLES or "(lambda at" in node.type or node.name in ("", "this"):
            continue
        generic = "__generic" in node.type
        if generic or (re.search(r"[*&]", node.type) and not _SPACED.search(node.type)):
            message = f"{node.name} has no address space: write device, constant, threadgroup or thread ({node.type})"
            yield message, node.file, node.line


def _outside_constant(nodes: list[Node]) -> Iterator[Complaint]:
    for node in nodes:
        if node.kind != "VarDecl" or "__constant" in node.type:
            continue
        if node.parent is None or node.says("static") or node.parent.kind in ("NamespaceDecl", "VarTemplateDecl"):
            yield f"{node.name} outlives the thread: Metal keeps it in constant memory only", node.file, node.line


def _lacking(nodes: list[Node]) -> Iterator[Complaint]:
    for node in nodes:
        if node.kind in _LACKING:
            yield f"Metal has no {_LACKING[node.kind]}", node.file, node.line


def _narrow_floats(nodes: list[Node]) -> Iterator[Complaint]:
    for node in nodes:
        cast = node.parent
        if cast is None or cast.kind != "ImplicitCastExpr" or "<FloatingCast>" not in cast.rest:
            continue
        if not cast.says("part_of_explicit_cast") and {cast.element, node.element} == {"half", "__bf16"}:
            yield "half and bfloat do not convert into each other: go by way of float", node.file, node.line


def _recursions(nodes: list[Node]) -> list[Complaint]:
    functions: dict[str, Node] = {}
    first: dict[str, str] = {}
    calls: dict[str, set[str]] = {}
    inside: list[tuple[int, str]] = []
    for node in nodes:
        while inside and inside[-1][0] >= node.depth:
            inside.pop()
        if node.kind in _FUNCTIONS:
            previous = _PREVIOUS.match(node.rest)
            first[node.address] = first.get(previous.group(1), previous.group(1)) if previous else node.address
            functions.setdefault(first[node.address], node)
            inside.append((node.depth, first[node.address]))
        elif inside and node.kind in ("DeclRefExpr", "MemberExpr"):
            calls.setdefault(inside[-1][1], set()).update(_CALLED.findall(node.rest))
    known = {caller: {first[one] for one in called if one in first} for caller, called in calls.items()}
    return [
        (f"{node.name} calls itself, which Metal does not allow", node.file, node.line)
        for address, node in functions.items()
        if node.file in (HEADER, BODY) and address in _reached(address, known)
    ]


def _reached(start: str, calls: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for called in calls.get(waiting.pop(), set()) - reached:
            reached.add(called)
            waiting.append(called)
    return reached


_RULES: tuple[Callable[[list[Node]], Iterator[Complaint]], ...] = (
    _without_address_space,
    _outside_constant,
    _lacking,
    _narrow_floats,
)
