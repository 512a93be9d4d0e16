"""`metal_kernel` and the callable that it gives, with the signatures of `mx.fast.metal_kernel`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast, get_args

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.host.build import Build, MathMode, kernel_library
from kernels.host.elements import as_mlx, as_numpy, carrier
from kernels.host.lint import lint
from kernels.host.options import RunOptions, current_options, record
from kernels.host.process import KernelDied, run_in_child
from kernels.host.report import Defect, Finding, KernelDefects, Report, Traffic
from kernels.host.signature import InputForm, KernelText, Parameter, Role, TemplateValue, generate
from kernels.host.site import decode
from kernels.host.strict import strict_findings
from kernels.host.translate import translate

MAX_THREADS_PER_THREADGROUP = 1024
MAX_BUFFERS = 31


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Mapping[str, str] | None = None,
) -> HostKernel:
    """A kernel that runs on the host; parameters and defaults are those of `mx.fast.metal_kernel`.

    `compile_options` are checked as MLX does. The host computes as math mode `safe`; of `relaxed` and `fast` it knows
    which contractions they allow, and of `fast` that nothing may be infinite or NaN.
    """
    if not output_names:
        raise ValueError("[metal_kernel] Must specify at least one output.")
    return HostKernel(
        name,
        tuple(input_names),
        tuple(output_names),
        source,
        header,
        ensure_row_contiguous,
        atomic_outputs,
        _math_mode(compile_options or {}),
    )


def _math_mode(compile_options: Mapping[str, str]) -> MathMode:
    chosen: MathMode = "safe"
    for option, value in compile_options.items():
        if option != "math_mode":
            raise ValueError(f"[metal_kernel] Unknown compile option `{option}`.")
        if value not in get_args(MathMode):
            raise ValueError("[metal_kernel] Expected math_mode to be 'safe', 'relaxed', or 'fast'.")
        chosen = cast(MathMode, value)
    return chosen


@dataclass(frozen=True)
class HostKernel:
    """The callable of `metal_kernel`. Run options come from `options.running(...)`."""

    name: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    source: str
    header: str
    ensure_row_contiguous: bool
    atomic_outputs: bool
    math_mode: MathMode

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array | bool | int | float],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, TemplateValue]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        """Runs the kernel at once and gives its outputs. KernelDefects if a check finds something."""
        self._check_call(inputs, output_shapes, output_dtypes, grid, threadgroup, template or ())
        arrays = [value if isinstance(value, mx.array) else mx.array(value) for value in inputs]
        text = self.text(arrays, output_dtypes, template or ())
        if len(text.parameters) > MAX_BUFFERS:
            raise ValueError(f"{len(text.parameters)} buffers, shapes and strides among them; Metal has {MAX_BUFFERS}")
        if verbose:
            print(f"Generated source code for `{self.name}`:\n```\n{text.text}\n```")

        options = current_options()
        static = [*lint(text), *strict_findings(text)] if options.static_checks else []
        bits = [self._laid_out(array) for array in arrays]
        buffers = [
            _input_buffer(parameter, bits[parameter.index], options)
            if parameter.role is not Role.OUTPUT
            else _output_buffer(parameter, output_shapes, output_dtypes, init_value)
            for parameter in text.parameters
        ]
        library = kernel_library(translate(text), Build(options.metered, options.contract, self.math_mode))
        request = {
            "library": str(library),
            "buffers": buffers,
            "grid": tuple(grid),
            "threadgroup": tuple(threadgroup),
            "options": {**asdict(options), "byte_offsets": None},
        }
        try:
            answer = run_in_child(request)
        except KernelDied as death:
            answer = answer_of_the_dead(death, buffers)
        report = report_of(self.name, static, answer, buffers, options)
        record(report)
        if report.findings and options.raise_on_findings:
            raise KernelDefects(report)
        return [
            as_mlx(np.frombuffer(output, carrier(dtype)).reshape(shape), dtype)
            for output, dtype, shape in zip(answer["outputs"], output_dtypes, output_shapes, strict=True)
        ]

    def text(
        self,
        inputs: Sequence[mx.array],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, TemplateValue]] = (),
    ) -> KernelText:
        """The text that MLX generates for a call with these inputs."""
        forms = [InputForm(array.dtype, array.ndim, array.size) for array in inputs]
        return generate(
            self.name,
            self.input_names,
            self.output_names,
            self.source,
            self.header,
            forms,
            output_dtypes,
            template,
            self.atomic_outputs,
        )

    def _check_call(
        self,
        inputs: Sequence[object],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, TemplateValue]],
    ) -> None:
        for what, actual, expected in (
            ("inputs", len(inputs), len(self.input_names)),
            ("output_shapes", len(output_shapes), len(self.output_names)),
            ("output_dtypes", len(output_dtypes), len(self.output_names)),
        ):
            if actual != expected:
                raise ValueError(f"[metal_kernel] Expected `{what}` to have size {expected} but got size {actual}.")
        if not all(isinstance(value, (bool, int, mx.Dtype)) for _, value in template):
            raise ValueError("[metal_kernel] Invalid template argument. Must be `mlx.core.Dtype`, `int` or `bool`.")
        for what, extent in (("grid", grid), ("threadgroup", threadgroup)):
            if min(extent) < 1:
                raise ValueError(f"{what} is {tuple(extent)}; three positive numbers of threads are needed")
        if math.prod(threadgroup) > MAX_THREADS_PER_THREADGROUP:
            raise ValueError(
                f"Thread group size ({math.prod(threadgroup)}) is greater than the maximum allowed threads per "
                f"threadgroup ({MAX_THREADS_PER_THREADGROUP})."
            )

    def _laid_out(self, array: mx.array) -> NDArray[np.generic]:
        bits = as_numpy(array)
        return np.ascontiguousarray(bits).reshape(bits.shape) if self.ensure_row_contiguous else bits


def _input_buffer(parameter: Parameter, bits: NDArray[np.generic], options: RunOptions) -> dict[str, Any]:
    """The request's buffer for an input or for what describes it."""
    strides = [stride // bits.itemsize for stride in bits.strides]
    origin = 0
    if parameter.role is Role.INPUT:
        contents, origin = memory_of(bits)
    elif parameter.role is Role.SHAPE:
        contents = np.array(bits.shape, np.int32).tobytes()
    elif parameter.role is Role.STRIDES:
        contents = np.array(strides, np.int64).tobytes()
    else:
        contents = np.array(bits.ndim, np.int32).tobytes()
    return {
        "name": parameter.name,
        "kind": "constant" if parameter.space == "constant" else "input",
        "contents": contents,
        "bytes": len(contents),
        "origin": origin,
        "byte_offset": options.byte_offsets.get(parameter.name, 0),
    }


def memory_of(bits: NDArray[np.generic]) -> tuple[bytes, int]:
    """The bytes that the array's elements span, and where among them its first element lies."""
    if bits.flags.c_contiguous or bits.size == 0:
        return bits.tobytes(), 0
    reach = [(extent - 1) * stride for extent, stride in zip(bits.shape, bits.strides, strict=True)]
    before = -sum(distance for distance in reach if distance < 0)
    span = before + sum(distance for distance in reach if distance > 0) + bits.itemsize
    lowest = bits[tuple(slice(None, None, -1) if stride < 0 else slice(None) for stride in bits.strides)]
    return ctypes.string_at(lowest.ctypes.data, span), before


def _output_buffer(
    parameter: Parameter,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[mx.Dtype],
    init_value: float | None,
) -> dict[str, Any]:
    shape, dtype = tuple(shapes[parameter.index]), dtypes[parameter.index]
    contents = None
    if init_value is not None:
        contents = as_numpy(mx.full(shape, init_value, dtype=mx.float32).astype(dtype)).tobytes()
    return {
        "name": parameter.name,
        "kind": "output",
        "contents": contents,
        "bytes": math.prod(shape) * carrier(dtype).itemsize,
        "origin": 0,
        "byte_offset": 0,
    }


def answer_of_the_dead(death: KernelDied, buffers: list[dict[str, Any]]) -> dict[str, Any]:
    defect = Defect.TIMEOUT if death.timed_out else Defect.CRASH
    return {
        "completed": False,
        "findings": [(defect.value, death.site, 1, str(death))],
        "outputs": [buffer["contents"] or bytes(buffer["bytes"]) for buffer in buffers if buffer["kind"] == "output"],
        "traffic": [],
    }


def report_of(
    name: str, static: list[Finding], answer: dict[str, Any], buffers: list[dict[str, Any]], options: RunOptions
) -> Report:
    findings = [*static]
    for kind, site, count, message in answer["findings"]:
        file, line = decode(site) or (None, None)
        findings.append(Finding(Defect(kind), message, file, line, count))
    traffic = {}
    if options.metered and answer["traffic"]:
        traffic = {
            buffer["name"]: Traffic(bytes=buffer["bytes"], **measured)
            for buffer, measured in zip(buffers, answer["traffic"], strict=True)
        }
    counts = ("threadgroups", "barriers", "collectives", "switches", "threadgroup_bytes", "seconds")
    return Report(
        kernel=name,
        findings=tuple(findings),
        completed=answer["completed"],
        traffic=traffic,
        **{count: answer[count] for count in counts if count in answer},
    )
