"""`cuda_kernel` and the callable that it gives, with the signatures of `mx.fast.cuda_kernel`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.host.build import cached, digest_of_host
from kernels.host.cuda.meter import metered
from kernels.host.cuda.text import Parameter, TemplateValue, parameters, translate
from kernels.host.elements import as_mlx, as_numpy, carrier
from kernels.host.kernel import answer_of_the_dead, memory_of, report_of
from kernels.host.options import RunOptions, current_options, record
from kernels.host.process import KernelDied, run_in_child
from kernels.host.report import Defect, Finding, KernelDefects
from kernels.host.toolchain import INCLUDE, clang, link

HERE = Path(__file__).parent
SHARED_BYTES, STATIC_SHARED_BYTES = 227 * 1024, 48 * 1024  # of a block, on sm_90
_LANGUAGE = ["-std=c++20", "-w", "-ferror-limit", "6", "-ftrivial-auto-var-init=pattern", "-fstack-clash-protection"]
# Unrolled, these texts take seconds to optimise, and a run of a small problem takes milliseconds as they are.
_CODE = ["-O0", "-ffp-contract=off", "-mrelocation-model", "pic", "-pic-level", "2"]


def cuda_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    shared_memory: int = 0,
) -> HostCudaKernel:
    """A kernel that runs on the host; parameters and defaults are those of `mx.fast.cuda_kernel`."""
    return HostCudaKernel(
        name, tuple(input_names), tuple(output_names), source, header, ensure_row_contiguous, shared_memory
    )


@dataclass(frozen=True)
class HostCudaKernel:
    """The callable of `cuda_kernel`. Run options come from `kernels.host.running(...)`."""

    name: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    source: str
    header: str
    ensure_row_contiguous: bool
    shared_memory: int

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, TemplateValue]] = (),
    ) -> list[mx.array]:
        """Runs the kernel at once and gives its outputs. KernelDefects if a check finds something."""
        options = current_options()
        dtypes = [array.dtype for array in inputs]
        of = parameters(self.source, self.input_names, dtypes, self.output_names, output_dtypes)
        text = translate(self.source, self.header, of, template, self.shared_memory)
        bits = [self._laid_out(array) for array in inputs]
        buffers = [_buffer(parameter, bits, output_shapes, output_dtypes, options) for parameter in of]
        buffers.append(_filled("end", np.zeros(8, np.int64).tobytes()))
        blocks = [-(-threads // group) for threads, group in zip(grid, threadgroup, strict=True)]
        request = {
            "library": str(library(text, options.metered)),
            "buffers": buffers,
            # CUDA runs whole blocks.
            "grid": tuple(count * group for count, group in zip(blocks, threadgroup, strict=True)),
            "threadgroup": tuple(threadgroup),
            "options": {**asdict(options), "byte_offsets": None},
        }
        try:
            answer = run_in_child(request)
        except KernelDied as death:
            answer = answer_of_the_dead(death, buffers)
        # The runtime has Metal's limit of memory; CUDA's are these.
        answer["findings"] = [one for one in answer["findings"] if one[0] != Defect.THREADGROUP_MEMORY.value]
        report = report_of(self.name, self._of_memory(answer.get("threadgroup_bytes", 0)), answer, buffers, options)
        record(report)
        if report.findings and options.raise_on_findings:
            raise KernelDefects(report)
        return [
            as_mlx(np.frombuffer(output, carrier(dtype)).reshape(shape), dtype)
            for output, dtype, shape in zip(answer["outputs"], output_dtypes, output_shapes, strict=True)
        ]

    def _laid_out(self, array: mx.array) -> NDArray[np.generic]:
        bits = as_numpy(array)
        return np.ascontiguousarray(bits).reshape(bits.shape) if self.ensure_row_contiguous else bits

    def _of_memory(self, taken: int) -> list[Finding]:
        found = []
        if taken > SHARED_BYTES:
            found.append(f"a block takes {taken} bytes of shared memory, of {SHARED_BYTES}")
        if taken - self.shared_memory > STATIC_SHARED_BYTES:
            found.append(f"a block declares {taken - self.shared_memory} bytes, of {STATIC_SHARED_BYTES}")
        return [Finding(Defect.THREADGROUP_MEMORY, message) for message in found]


def library(text: str, meter: bool) -> Path:
    """The shared library of a translated kernel."""

    def make(folder: Path, output: Path) -> None:
        source, ir, compiled = folder / "kernel.cpp", folder / "kernel.ll", folder / "kernel.o"
        source.write_text(text)
        stage = ["-emit-llvm", "-disable-llvm-passes", *_LANGUAGE, *_CODE]
        stage += ["-DHOST_METERED", "-debug-info-kind=line-tables-only"] if meter else []
        clang([*stage, "-I", INCLUDE, "-I", HERE, "-x", "c++", source.name, "-o", ir.name], folder)
        if meter:
            ir.write_text(metered(ir.read_text()))
        clang(["-emit-obj", *_CODE, "-x", "ir", ir.name, "-o", compiled.name], folder)
        link(compiled, output)

    return cached(f"{digest_of_host()} {_digest()} {meter} {text}", ".so", make)


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for file in sorted(HERE.iterdir()):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _buffer(
    parameter: Parameter,
    bits: Sequence[NDArray[np.generic]],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[mx.Dtype],
    options: RunOptions,
) -> dict[str, Any]:
    index = parameter.index
    if parameter.role == "output":
        size = int(np.prod(shapes[index])) * carrier(dtypes[index]).itemsize
        return {**_filled(parameter.name, b""), "kind": "output", "contents": None, "bytes": size}
    array = bits[index]
    if parameter.role == "shape":
        return _filled(parameter.name, _eight(array.shape, np.int32))
    if parameter.role == "ndim":
        return _filled(parameter.name, _eight([array.ndim], np.int32))
    if parameter.role == "strides":
        return _filled(parameter.name, _eight([stride // array.itemsize for stride in array.strides], np.int64))
    contents, origin = memory_of(array)
    offset = options.byte_offsets.get(parameter.name, 0)
    return {**_filled(parameter.name, contents), "origin": origin, "byte_offset": offset}


def _filled(name: str, contents: bytes) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "input",
        "contents": contents,
        "bytes": len(contents),
        "origin": 0,
        "byte_offset": 0,
    }


def _eight(values: Sequence[int], kind: type[np.signedinteger[Any]]) -> bytes:
    """As MLX passes shapes and strides: eight, by value."""
    return np.array([*values, *[0] * (8 - len(values))], kind).tobytes()
