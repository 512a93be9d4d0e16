"""Kernels whose template values are constants of their text: calls take less of the thread that the device waits for.

With every call MLX puts a kernel's text together anew, and on Metal finds the name of a templated one by a regular
expression. A pass of a large model has 320 calls. So a kernel with other template values is another kernel here, made
once, and its text has nothing in it that only people read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from kernels.naming import named

TemplateValue = bool | int | mx.Dtype
Kernel = Callable[..., list[mx.array]]

METAL_TYPES = {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t"}
CUDA_TYPES = {mx.float32: "float", mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}
# Strings come first: what looks like a comment in them is none.
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|[ \t]*//[^\n]*')
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)


def metal_kernel(**making: Any) -> Kernel:
    """What `mx.fast.metal_kernel` makes, called in the same way."""
    return specialised(mx.fast.metal_kernel, METAL_TYPES)(**making)


def cuda_kernel(**making: Any) -> Kernel:
    """What `mx.fast.cuda_kernel` makes, called in the same way."""
    return specialised(mx.fast.cuda_kernel, CUDA_TYPES)(**making)


def specialised(factory: Callable[..., Any], types: Mapping[mx.Dtype, str]) -> Callable[..., Kernel]:
    """A factory in the place of `factory`. types: what the language calls the types that are template values."""

    def make(*, name: str, source: str, header: str = "", **options: Any) -> Kernel:
        bare_source, bare_header = bare(source), bare(header)

        @cache
        def kernel(template: tuple[tuple[str, TemplateValue], ...]) -> Any:
            text = "".join(_constant(*value, types) for value in template) + bare_source
            return factory(name=named(name, bare_header, text), source=text, header=bare_header, **options)

        def run(*, template: Sequence[tuple[str, TemplateValue]] = (), **call: Any) -> list[mx.array]:
            called: list[mx.array] = kernel(tuple(template))(**call)
            return called

        return run

    return make


def bare(text: str) -> str:
    """The text without line comments and indentation. Lines keep their numbers, which compilers name in errors."""
    return _INDENTATION.sub("", _COMMENT.sub(lambda found: found[1] or "", text))


def _constant(name: str, value: TemplateValue, types: Mapping[mx.Dtype, str]) -> str:
    """Within the first line of the body, where a template parameter would be known as well."""
    if isinstance(value, mx.Dtype):
        return f"using {name} = {types[value]}; "
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()}; "
    return f"constexpr int {name} = {value}; "
