"""The complete Metal text that MLX generates around a kernel's body.

Source: write_signature and metal_kernel in mlx/backend/common/metal_kernel.cpp, MLX 0.32. A test compares this text,
byte by byte, with what the installed MLX writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import mlx.core as mx

from kernels.host.elements import metal_name

TemplateValue = bool | int | mx.Dtype

# An input with fewer elements is passed in the constant address space.
CONSTANT_BELOW = 8

# In MLX's order. An attribute becomes a parameter if its name occurs anywhere in the body.
ATTRIBUTES: dict[str, str] = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}


class Role(Enum):
    """What a buffer parameter is bound to."""

    INPUT = "input"
    SHAPE = "shape"
    STRIDES = "strides"
    NDIM = "ndim"
    OUTPUT = "output"


@dataclass(frozen=True)
class Parameter:
    """One buffer of the signature, in binding order."""

    name: str
    role: Role
    index: int
    """Position of the input or output that it belongs to."""
    space: str
    """`device` or `constant`."""
    type: str
    reference: bool
    """A 0-d value arrives as a reference, everything else as a pointer."""

    @property
    def declarator(self) -> str:
        const = "" if self.role is Role.OUTPUT else "const "
        return f"{const}{self.space} {self.type}{'&' if self.reference else '*'}"


@dataclass(frozen=True)
class InputForm:
    """What of an input decides the text: its type, rank and number of elements."""

    dtype: mx.Dtype
    ndim: int
    size: int


@dataclass(frozen=True)
class KernelText:
    """MLX's text in its four parts; `text` is what MLX compiles after its own prelude."""

    kernel_name: str
    header: str
    signature: str
    """From `template <` or `[[kernel]]` to the opening brace."""
    source: str
    instantiation: str
    template_parameters: tuple[tuple[str, TemplateValue], ...]
    parameters: tuple[Parameter, ...]
    attributes: tuple[str, ...]
    well_formed: bool
    """False where MLX closes the parameter list after the first output and Metal cannot compile the text."""

    @property
    def text(self) -> str:
        return f"{self.header}{self.signature}{self.source}\n}}\n{self.instantiation}"

    @property
    def template_arguments(self) -> str:
        """`<bfloat16_t, 16>`, or nothing for a kernel without a template."""
        return _template_arguments(self.template_parameters)


def generate(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str,
    inputs: Sequence[InputForm],
    output_dtypes: Sequence[mx.Dtype],
    template: Sequence[tuple[str, TemplateValue]],
    atomic_outputs: bool,
) -> KernelText:
    """The text of one call, as MLX 0.32 writes it, its known defect included (`well_formed`)."""
    parameters = _parameters(input_names, output_names, source, inputs, output_dtypes, atomic_outputs)
    attributes = tuple(attribute for attribute in ATTRIBUTES if attribute in source)
    kernel_name = _kernel_name(name, inputs, output_dtypes, template)
    arguments = _template_arguments(template)

    lines = [f"  {p.declarator} {p.name} [[buffer({i})]]" for i, p in enumerate(parameters)]
    lines += [f"  {ATTRIBUTES[attribute]} {attribute} [[{attribute}]]" for attribute in attributes]
    # MLX ends the list after the output whose buffer index is the last one of a kernel without shapes. Of two outputs
    # behind a shape, both are "last".
    last = len(input_names) + len(output_names) - 1
    closes = [p.role is Role.OUTPUT and i >= last and not attributes for i, p in enumerate(parameters)]
    closes += [False] * len(attributes)
    closes[-1] = True
    signature = _template_head(template) + f"[[kernel]] void {kernel_name}(\n"
    signature += "".join(line + (") {\n" if close else ",\n") for line, close in zip(lines, closes, strict=True))

    specialised = f"{kernel_name}{arguments}"
    return KernelText(
        kernel_name=kernel_name,
        header=header,
        signature=signature,
        source=source,
        instantiation=(
            f'\ntemplate [[host_name("{kernel_name}")]] [[kernel]] decltype({specialised}) {specialised};\n'
            if template
            else ""
        ),
        template_parameters=tuple(template),
        parameters=tuple(parameters),
        attributes=attributes,
        well_formed=sum(closes) == 1,
    )


def _parameters(
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    inputs: Sequence[InputForm],
    output_dtypes: Sequence[mx.Dtype],
    atomic_outputs: bool,
) -> list[Parameter]:
    parameters = []
    for index, (name, form) in enumerate(zip(input_names, inputs, strict=True)):
        space = "constant" if form.size < CONSTANT_BELOW else "device"
        parameters.append(Parameter(name, Role.INPUT, index, space, metal_name(form.dtype), form.ndim == 0))
        if form.ndim == 0:
            continue
        # A mention anywhere counts, in comments and inside longer identifiers too.
        for role, kind, reference in (
            (Role.SHAPE, "int", False),
            (Role.STRIDES, "int64_t", False),
            (Role.NDIM, "int", True),
        ):
            described = f"{name}_{role.value}"
            if described in source:
                parameters.append(Parameter(described, role, index, "constant", kind, reference))
    for index, (name, dtype) in enumerate(zip(output_names, output_dtypes, strict=True)):
        kind = f"atomic<{metal_name(dtype)}>" if atomic_outputs else metal_name(dtype)
        parameters.append(Parameter(name, Role.OUTPUT, index, "device", kind, False))
    return parameters


def _kernel_name(
    name: str,
    inputs: Sequence[InputForm],
    output_dtypes: Sequence[mx.Dtype],
    template: Sequence[tuple[str, TemplateValue]],
) -> str:
    parts = [f"custom_kernel_{name}"]
    if template:
        parts.append("_" + "_".join(_template_value(value) for _, value in template).replace("-", "_"))
    parts += [metal_name(form.dtype) + _passing_tag(form) for form in inputs]
    parts += [metal_name(dtype) for dtype in output_dtypes]
    return "_".join(parts)


def _passing_tag(form: InputForm) -> str:
    if form.ndim == 0:
        return "s"
    return "c" if form.size < CONSTANT_BELOW else ""


def _template_head(template: Sequence[tuple[str, TemplateValue]]) -> str:
    if not template:
        return ""
    return "template <" + ", ".join(f"{_template_kind(value)} {name}" for name, value in template) + ">\n"


def _template_arguments(template: Sequence[tuple[str, TemplateValue]]) -> str:
    return "<" + ", ".join(_template_value(value) for _, value in template) + ">" if template else ""


def _template_kind(value: TemplateValue) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"


def _template_value(value: TemplateValue) -> str:
    return str(int(value)) if isinstance(value, (bool, int)) else metal_name(value)
