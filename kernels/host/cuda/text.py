"""MLX's CUDA text as a C++ translation unit that clang compiles against `cuda_host.h`.

The text is kept as it is, line by line, but for shared memory, which is the runtime's, and asm statements, which become
calls of functions of `ptx.h`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from kernels.host.text import blanked, matching

TemplateValue = bool | int | mx.Dtype
CUDA_NAMES: dict[mx.Dtype, str] = {
    mx.bfloat16: "__nv_bfloat16",
    mx.float16: "__half",
    mx.float32: "float",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
    mx.uint8: "uint8_t",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel. role: input, shape, strides, ndim or output. index: of its input or output."""

    name: str
    role: str
    index: int
    type: str


def parameters(
    source: str,
    input_names: Sequence[str],
    input_dtypes: Sequence[mx.Dtype],
    output_names: Sequence[str],
    output_dtypes: Sequence[mx.Dtype],
) -> list[Parameter]:
    """In MLX's order: behind each input its shape, strides and rank, where the text mentions them; then the outputs."""
    found = []
    for index, (name, dtype) in enumerate(zip(input_names, input_dtypes, strict=True)):
        found.append(Parameter(name, "input", index, CUDA_NAMES[dtype]))
        for role, kind in (("shape", "Shape"), ("strides", "Strides"), ("ndim", "int")):
            if f"{name}_{role}" in source:
                found.append(Parameter(f"{name}_{role}", role, index, kind))
    for index, (name, dtype) in enumerate(zip(output_names, output_dtypes, strict=True)):
        found.append(Parameter(name, "output", index, CUDA_NAMES[dtype]))
    return found


def translate(
    source: str, header: str, of: Sequence[Parameter], template: Sequence[tuple[str, TemplateValue]], shared_bytes: int
) -> str:
    """The C++ text with `host_entry(buffers, thread)` as its only entry point. shared_bytes: dynamic, of a block."""
    declared = ", ".join(_declared(parameter) for parameter in of)
    arguments = ", ".join(_argument(parameter, place) for place, parameter in enumerate(of))
    constants = " ".join(_constant(name, value) for name, value in template)
    return (
        f"#define HOST_SHARED_BYTES {shared_bytes}\n"
        f'#include "cuda_host.h"\n'
        f'#line 1 "header"\n{without_asm(header)}\n'
        f'#line 1 "signature"\nnamespace mlx::core::cu {{\nstatic void kernel({declared}) {{ {constants}\n'
        f'#line 1 "body"\n{without_asm(_without_shared(source))}\n}}\n}}\n'
        f'#line 1 "entry"\n'
        f'extern "C" void host_entry(void** b, const HostThread* t) {{\n'
        f"  cuda_host::begin(b[0], b[{len(of)}], t);\n  mlx::core::cu::kernel({arguments});\n}}\n"
    )


def _declared(parameter: Parameter) -> str:
    if parameter.role in ("shape", "strides", "ndim"):
        return f"const {parameter.type} {parameter.name}"
    return f"{'const ' if parameter.role == 'input' else ''}{parameter.type}* {parameter.name}"


def _argument(parameter: Parameter, place: int) -> str:
    if parameter.role in ("shape", "strides"):
        return f"*(const mlx::core::cu::{parameter.type}*)b[{place}]"
    if parameter.role == "ndim":
        return f"*(const int*)b[{place}]"
    return f"({parameter.type}*)b[{place}]"


def _constant(name: str, value: TemplateValue) -> str:
    if isinstance(value, mx.Dtype):
        return f"using {name} = {CUDA_NAMES[value]};"
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    return f"constexpr int {name} = {value};"


def _without_shared(source: str) -> str:
    numbers = iter(range(64))

    def dynamic(match: re.Match[str]) -> str:
        kind, name = match.groups()
        return f'auto* const {name} = cuda_host::dynamic_shared<{kind}>({next(numbers)}, "{name}");'

    def fixed(match: re.Match[str]) -> str:
        kind, name, extents = match.groups()
        return f'auto& {name} = cuda_host::shared<{kind}{extents}>({next(numbers)}, "{name}");'

    source = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];", dynamic, source)
    return re.sub(r"__shared__ (?:__align__\(\d+\) )?(\w+) (\w+)((?:\[[^;\[\]]*\])*);", fixed, source)


def without_asm(text: str) -> str:
    """`asm("a.b %0, [%1], 16;" : "=r"(x) : "l"(p))` becomes `ptx::a_b(x, p, 16)`, on as many lines."""
    clean = blanked(text)
    pieces, position = [], 0
    for match in re.finditer(r"\basm\b(?:\s+volatile)?\s*\(", clean):
        close = matching(clean, match.end() - 1)
        statement = text[match.start() : close + 1]
        pieces += [text[position : match.start()], _call(text[match.end() : close]), "\n" * statement.count("\n")]
        position = close + 1
    return "".join(pieces) + text[position:]


def _call(statement: str) -> str:
    """statement: what stands between the brackets of asm."""
    instruction, *lists = _split(statement, ":")
    words = "".join(re.findall(r'"([^"]*)"', instruction))
    operands = [operand for one in lists[:2] if one.strip() for operand in _split(one, ",")]
    values = [operand[operand.index("(") + 1 : operand.rindex(")")] for operand in operands]
    found = re.fullmatch(r"\s*([\w.:]+)\s*(.*?);\s*", words)
    if found is None or ";" in found.group(2):
        raise ValueError(f"the host reads one instruction from each asm statement, not {words!r}")
    name, rest = found.groups()
    arguments = [re.sub(r"[\[\]{}\s]", "", argument) for argument in rest.split(",") if argument.strip()]
    filled = [values[int(one[1:])] if one.startswith("%") else one for one in arguments]
    return f"ptx::{re.sub(r'[.:]', '_', name)}({', '.join(' '.join(one.split()) for one in filled)})"


def _split(text: str, separator: str) -> list[str]:
    """At the separators that stand in no bracket and no string."""
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(blanked(text)):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]
