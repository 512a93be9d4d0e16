"""MLX's Metal text as a C++ translation unit that clang compiles against the headers in `include/`.

The text is kept as it is, line by line, but for three things that C++ has no spelling for: attributes in the signature,
storage in threadgroup memory, and construction of `vec<T, N>` from several values.
"""

from __future__ import annotations

import re

from kernels.host.signature import KernelText, Role
from kernels.host.text import blanked, line_of, matching, split_top_level, without_directives

_UINT3 = "uint3{{t->{0}.x, t->{0}.y, t->{0}.z}}"
_QUADGROUPS = "((t->{0}.x * t->{0}.y * t->{0}.z + 3) / 4)"
_ATTRIBUTE_VALUES: dict[str, str] = {
    "dispatch_quadgroups_per_threadgroup": _QUADGROUPS.format("dispatch_threads_per_threadgroup"),
    "dispatch_simdgroups_per_threadgroup": "t->dispatch_simdgroups_per_threadgroup",
    "dispatch_threads_per_threadgroup": _UINT3.format("dispatch_threads_per_threadgroup"),
    "grid_origin": "uint3{0, 0, 0}",
    "grid_size": _UINT3.format("threads_per_grid"),
    "quadgroup_index_in_threadgroup": "(t->index_in_threadgroup / 4)",
    "quadgroups_per_threadgroup": _QUADGROUPS.format("threads_per_threadgroup"),
    "simdgroup_index_in_threadgroup": "t->simdgroup",
    "simdgroups_per_threadgroup": "t->simdgroups_per_threadgroup",
    "thread_execution_width": "32u",
    "thread_index_in_quadgroup": "(t->lane % 4)",
    "thread_index_in_simdgroup": "t->lane",
    "thread_index_in_threadgroup": "t->index_in_threadgroup",
    "thread_position_in_grid": _UINT3.format("position_in_grid"),
    "thread_position_in_threadgroup": _UINT3.format("position_in_threadgroup"),
    "threadgroup_position_in_grid": _UINT3.format("threadgroup_position"),
    "threadgroups_per_grid": _UINT3.format("threadgroups_per_grid"),
    "threads_per_grid": _UINT3.format("threads_per_grid"),
    "threads_per_simdgroup": "32u",
    "threads_per_threadgroup": _UINT3.format("threads_per_threadgroup"),
}

# The headers that the host provides by itself; any other include is left to the compiler's complaint.
_PROVIDED_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(metal_\w+|simd/\w+\.h|MetalPerformancePrimitives/\w+\.h)>", re.MULTILINE
)


class UnsupportedText(ValueError):
    """The host cannot execute this text, though Metal might; the message says what to write instead."""


def translate(kernel: KernelText) -> str:
    """The C++ text with `host_entry(buffers, thread)` as its only entry point."""
    if not kernel.well_formed:
        raise UnsupportedText(
            "MLX closes the parameter list of this kernel after its first output (it has several outputs, a _shape, "
            "_strides or _ndim, and no attribute): mention an attribute, such as thread_position_in_grid, in the body"
        )
    if _threadgroup_storage(kernel.header):
        raise UnsupportedText("threadgroup variables belong at the top of the kernel's body, not into its header")
    tensors = "#define HOST_TENSORS\n" if uses_tensors(kernel) else ""
    return (
        f'{tensors}#include "metal_host.h"\n'
        f'#line 1 "header"\n{rewrite_common(kernel.header)}\n'
        f'#line 1 "signature"\n{without_attributes(kernel.signature)}'
        f'#line 1 "body"\n{rewrite_common(_rewrite_threadgroup_storage(kernel.source))}\n}}\n'
        f'#line 1 "entry"\n{_entry(kernel)}\n'
    )


def uses_tensors(kernel: KernelText) -> bool:
    return "tensor" in kernel.header or "tensor" in kernel.source


def rewrite_common(source: str) -> str:
    """What both the executable build and the strict pass need."""
    return _rewrite_vector_construction(_PROVIDED_INCLUDE.sub("", source))


def without_attributes(signature: str) -> str:
    return re.sub(r"\s*\[\[.*?\]\]", "", signature)


def _entry(kernel: KernelText) -> str:
    arguments = []
    for index, parameter in enumerate(kernel.parameters):
        const = "" if parameter.role is Role.OUTPUT else "const "
        pointer = f"({const}{parameter.space} {parameter.type}*)b[{index}]"
        arguments.append(f"*{pointer}" if parameter.reference else pointer)
    arguments += [_ATTRIBUTE_VALUES[attribute] for attribute in kernel.attributes]
    call = f"{kernel.kernel_name}{kernel.template_arguments}({', '.join(arguments)})"
    return f'extern "C" void host_entry(void** b, const HostThread* t) {{ {call}; }}'


def _threadgroup_storage(source: str) -> list[tuple[int, int]]:
    """Where storage in threadgroup memory is declared, from the keyword to the semicolon; pointers are not storage."""
    clean = without_directives(blanked(source))
    found = []
    for match in re.finditer(r"\bthreadgroup\b", clean):
        before = clean[: match.start()].rstrip()
        if before and before[-1] not in ";{}":
            continue
        end = clean.find(";", match.end())
        declaration = clean[match.end() : end]
        if end >= 0 and not re.search(r"[*&={}]", _without_arguments(declaration)):
            found.append((match.start(), end + 1))
    return found


def _without_arguments(declaration: str) -> str:
    """The declaration without what stands in brackets: `atomic<uint> a[B * 2]` becomes `atomic a`."""
    while True:
        shorter = re.sub(r"<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)", " ", declaration)
        if shorter == declaration:
            return shorter
        declaration = shorter


def _rewrite_threadgroup_storage(source: str) -> str:
    pieces, position, number = [], 0, 0
    for begin, end in _threadgroup_storage(source):
        declaration = source[begin + len("threadgroup") : end - 1]
        clean = re.sub(r"\balignas\s*\([^)]*\)", "", blanked(declaration))
        first, *others = split_top_level(clean)
        match = re.fullmatch(r"\s*(.+?)\s*\b(\w+)\s*((?:\[.*\]\s*)?)", first, re.DOTALL)
        if match is None:
            raise UnsupportedText(
                f"body:{line_of(source, begin)}: this threadgroup declaration cannot be read; "
                "write `threadgroup T name[N];`"
            )
        kind = " ".join(match.group(1).split())
        variables = [(match.group(2), match.group(3))]
        for other in others:
            name, dimensions = re.fullmatch(r"\s*(\w+)\s*(.*)", other, re.DOTALL).groups()  # type: ignore[union-attr]
            variables.append((name, dimensions))
        pieces.append(source[position:begin])
        for name, dimensions in variables:
            of = f"{kind} {' '.join(dimensions.split())}".strip()
            pieces.append(f'auto& {name} = host::threadgroup_variable<{of}, {number}>("{name}"); ')
            number += 1
        pieces.append("\n" * source.count("\n", begin, end))
        position = end
    return "".join(pieces) + source[position:]


def _rewrite_vector_construction(source: str) -> str:
    """`vec<T, 4>(a, b)` becomes `host::make<vec<T, 4>>(a, b)`."""
    clean = blanked(source)
    pieces, position = [], 0
    for match in re.finditer(r"\b(?:metal::)?vec\s*<", clean):
        close = matching(clean, match.end() - 1)
        if close < 0 or match.start() < position or not clean[close + 1 :].lstrip().startswith("("):
            continue
        pieces.append(f"{source[position : match.start()]}host::make<{source[match.start() : close + 1]}>")
        position = close + 1
    return "".join(pieces) + source[position:]
