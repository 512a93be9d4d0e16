"""Every defect, planted one at a time, is found at its line; without it the kernel has no finding."""

import re
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from host_runs import Outputs, run

from kernels.host import Defect, KernelDefects, Report, RunOptions

X = np.arange(64, dtype=np.float32)
OUT = {"out": ((64,), mx.float32)}


@dataclass(frozen=True)
class Planted:
    """A body whose line @ is `bad` in the planted kernel and `good` in the clean one."""

    body: str
    bad: str
    good: str
    defect: Defect
    message: str
    line: int | None = 0
    """Where it is found; 0 for the line @."""
    outputs: Outputs = field(default_factory=lambda: OUT)
    byte_offsets: dict[str, int] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)

    def run(self, line: str) -> Report:
        names = [name for name in ("x", "y", "small") if re.search(rf"\b{name}\b", self.body + self.bad)]
        inputs = {name: np.array([1, 2, 3, 4], np.float32) if name == "small" else X for name in names}
        options = RunOptions(byte_offsets=self.byte_offsets, raise_on_findings=False)
        call = {"grid": (64, 1, 1), **self.call}
        return run(self.body.replace("@", line), inputs, self.outputs, options=options, **call)[1]


ONE_LINE = "uint i = thread_position_in_grid.x;\n@\n"
TWO_GROUPS = {"grid": (128, 1, 1), "threadgroup": (64, 1, 1)}
TILE = """threadgroup float t[64];
uint i = thread_position_in_grid.x;
@
threadgroup_barrier(mem_flags::mem_threadgroup);
out[i] = t[63 - i];
"""
REDUCTION = """threadgroup float t[64];
const uint i = thread_position_in_threadgroup.x;
t[i] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint d = 32; d > 0; d >>= 1) {
    if (i < d) t[i] += t[i + d];
    @
}
out[i] = t[0];
"""
FENCE = "threadgroup_barrier(mem_flags::mem_threadgroup);"

PLANTED = {
    "read beyond the end": Planted(
        ONE_LINE, "out[i] = x[i + 1];", "out[i] = x[min(i + 1u, 63u)];", Defect.OUT_OF_BOUNDS,
        "thread 63 of threadgroup 0 reads 4 bytes at offset 256 of x, which has 256 bytes",
    ),
    "read before the beginning": Planted(
        ONE_LINE, "out[i] = x[int(i) - 1];", "out[i] = x[max(int(i) - 1, 0)];", Defect.OUT_OF_BOUNDS,
        "thread 0 of threadgroup 0 reads 4 bytes at offset -4 of x, which has 256 bytes",
    ),
    "write beyond the end": Planted(
        ONE_LINE, "out[i == 63 ? 64 : i] = x[i]; if (i == 0) out[63] = 1;", "out[i] = x[i];", Defect.OUT_OF_BOUNDS,
        "thread 63 of threadgroup 0 writes 4 bytes at offset 256 of out, which has 256 bytes",
    ),
    "vector that sticks out": Planted(
        ONE_LINE, "out[i] = (*(const device float4*)(x + (i & ~3u) + (i == 63 ? 4 : 0))).x;",
        "out[i] = (*(const device float4*)(x + (i & ~3u))).x;", Defect.OUT_OF_BOUNDS,
        "thread 63 of threadgroup 0 reads 16 bytes at offset 256 of x, which has 256 bytes",
    ),
    "small input": Planted(
        ONE_LINE, "out[i] = small[i % 5];", "out[i] = small[i % 4];", Defect.OUT_OF_BOUNDS,
        "thread 4 of threadgroup 0 reads 4 bytes at offset 16 of small, which has 16 bytes",
    ),
    "shape": Planted(
        ONE_LINE, "out[i] = float(x_shape[i / 63]);", "out[i] = float(x_shape[0]);", Defect.OUT_OF_BOUNDS,
        "reads 4 bytes at offset 4 of x_shape, which has 4 bytes",
    ),
    "wild pointer": Planted(
        ONE_LINE, "out[i] = i ? 1.0f : *(const device float*)(ulong(x) + (1ul << 45));",
        "out[i] = i ? 1.0f : *(const device float*)(ulong(x) + (0ul << 45));", Defect.OUT_OF_BOUNDS,
        "thread 0 of threadgroup 0 reads 4 bytes in no buffer at all",
    ),
    "threadgroup array, through a pointer": Planted(
        TILE, "threadgroup float* p = t; p[i] = 0; if (i == 7) p[64] = 1;", "threadgroup float* p = t; p[i] = 0;",
        Defect.OUT_OF_BOUNDS, "thread 7 of threadgroup 0 writes 4 bytes at offset 256 of t, which has 256 bytes",
    ),
    "threadgroup array, by index": Planted(
        TILE, "t[i + (i == 63 ? 1 : 0)] = x[i];", "t[i] = x[i];", Defect.UNDEFINED,
        "index outside an array in thread 63 of threadgroup 0",
    ),
    "private array": Planted(
        "uint i = thread_position_in_grid.x;\nfloat a[8];\nfor (int e = 0; e < 8; ++e) a[e] = x[i];\n@",
        "out[i] = a[i / 4];", "out[i] = a[i / 8];", Defect.UNDEFINED,
        "index outside an array in thread 32 of threadgroup 0",
    ),
    "misaligned vector in a slice": Planted(
        ONE_LINE, "out[i] = (*(const device float4*)(y + 4 * (i / 4)))[i % 4];", "out[i] = y[i];", Defect.MISALIGNED,
        "thread 0 accesses offset 0 of y, which must be aligned to 16 bytes and is 4 off", byte_offsets={"y": 4},
    ),
    "misaligned threadgroup vector": Planted(
        "threadgroup float t[65];\nuint i = thread_position_in_grid.x;\n"
        "t[i] = 1; if (i == 0) t[64] = 1;\n" + FENCE + "\n@",
        "out[i] = (*(threadgroup float2*)(t + i)).y;", "out[i] = (*(threadgroup float2*)(t + (i & ~1u))).y;",
        Defect.MISALIGNED, "thread 1 accesses offset 4 of t, which must be aligned to 8 bytes and is 4 off",
    ),
    "write to an input": Planted(
        ONE_LINE, "out[i] = x[i]; ((device float*)x)[i] = 0;", "out[i] = x[i];", Defect.WRITE_TO_INPUT,
        "thread 0 of threadgroup 0 writes offset 0 of the input x",
    ),
    "read of an output": Planted(
        ONE_LINE, "out[i] += x[i];", "out[i] = x[i]; out[i] += x[i];", Defect.UNINITIALISED_READ,
        "thread 0 of threadgroup 0 reads byte 0 of out before anything is written there",
    ),
    "read of threadgroup memory": Planted(
        TILE, "if (i > 3) t[i] = 1;", "t[i] = 1;", Defect.UNINITIALISED_READ,
        "thread 60 of threadgroup 0 reads byte 12 of t before anything is written there", line=5,
    ),
    "threadgroup memory of the threadgroup before": Planted(
        "threadgroup float t[64];\nuint i = thread_index_in_threadgroup;\n"
        "if (threadgroup_position_in_grid.x == 0) t[i] = 1;\n@\nout[i + 64 * threadgroup_position_in_grid.x] = t[i];",
        "", "t[i] = 2;", Defect.UNINITIALISED_READ,
        "thread 0 of threadgroup 1 reads byte 0 of t before anything is written there",
        line=5, outputs={"out": ((128,), mx.float32)}, call=TWO_GROUPS,
    ),
    "update of what is not initialised": Planted(
        "uint i = thread_position_in_grid.x;\nthreadgroup atomic_uint n;\n@\n" + FENCE + "\n"
        "out[i] = float(atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed) / 64u);",
        "", "if (i == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);", Defect.UNINITIALISED_READ,
        "thread 0 of threadgroup 0 updates byte 0 of n before anything is written there", line=5,
    ),
    "output not fully written": Planted(
        ONE_LINE, "if (i < 60) out[i] = x[i];", "out[i] = x[i];", Defect.UNWRITTEN_OUTPUT,
        "16 of 256 bytes of out are never written, the first at offset 240", line=None,
    ),
    "missing barrier": Planted(
        REDUCTION, "", FENCE, Defect.RACE, "read at body:6, and nothing orders the two",
        line=6,
    ),
    "barrier that orders nothing": Planted(
        REDUCTION, "threadgroup_barrier(mem_flags::mem_none);", FENCE, Defect.RACE,
        "thread 0 reads byte 64 of t, written at body:6, and nothing orders the two", line=6,
    ),
    "barrier that orders other memory": Planted(
        REDUCTION, "threadgroup_barrier(mem_flags::mem_device);", FENCE, Defect.RACE,
        "thread 0 reads byte 64 of t, written at body:6, and nothing orders the two", line=6,
    ),
    "barrier of the simdgroup only": Planted(
        REDUCTION, "simdgroup_barrier(mem_flags::mem_threadgroup);", FENCE, Defect.RACE,
        "thread 32 reads byte 0 of t, written at body:6, and nothing orders the two", line=9,
    ),
    "device memory shared within a threadgroup": Planted(
        "uint i = thread_position_in_grid.x;\nout[i] = x[i];\n@\nif (i < 32) out[i] = out[63 - i];",
        FENCE, "threadgroup_barrier(mem_flags::mem_device);", Defect.RACE,
        "thread 0 reads byte 252 of out, written at body:2, and nothing orders the two", line=4,
    ),
    "two threadgroups write one byte": Planted(
        ONE_LINE, "out[i % 64] = x[i % 64];", "if (i < 64) out[i] = x[i];", Defect.OVERLAP,
        "threadgroup 1 writes byte 0 of out, which another threadgroup writes at body:2", call=TWO_GROUPS,
    ),
    "threadgroup reads what another writes": Planted(
        "uint i = thread_position_in_grid.x;\nif (i < 64) out[i] = x[i];\n@\n",
        "else out[i] = out[i - 64];", "else out[i] = x[i - 64];", Defect.OVERLAP,
        "threadgroup 1 reads byte 0 of out, which another threadgroup writes at body:2",
        outputs={"out": ((128,), mx.float32)}, call=TWO_GROUPS,
    ),
    "threadgroup writes what another has read": Planted(
        "uint i = thread_position_in_grid.x;\nif (i < 64) total[i] = out[i];\n@\n",
        "else out[i - 64] = 1;", "else total[i] = 1;", Defect.OVERLAP,
        "threadgroup 1 writes byte 0 of out, which another threadgroup reads at body:2",
        outputs={"out": ((64,), mx.float32), "total": ((128,), mx.float32)}, call={"init_value": 0.0, **TWO_GROUPS},
    ),
    "plain access to what others update atomically": Planted(
        "uint i = thread_position_in_grid.x;\n@", "out[i % 64] += 1.0f;",
        "atomic_fetch_add_explicit((device atomic_float*)&out[i % 64], 1.0f, memory_order_relaxed);", Defect.OVERLAP,
        "threadgroup 1 reads byte 0 of out, which another threadgroup writes at body:2",
        call={"init_value": 0.0, **TWO_GROUPS},
    ),
    "atomic load among updates": Planted(
        "threadgroup atomic_uint n;\nuint i = thread_position_in_grid.x;\n"
        "if (i == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);\n" + FENCE + "\n"
        "atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed);\n@\n"
        "out[i] = float(atomic_load_explicit(&n, memory_order_relaxed));",
        "", FENCE, Defect.RACE, "reads byte 0 of n, updated at body:5", line=7,
    ),
    "barrier in divergent flow": Planted(
        ONE_LINE, "if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);\nout[i] = x[i];",
        "if (i < 99) threadgroup_barrier(mem_flags::mem_threadgroup);\nout[i] = x[i];", Defect.EARLY_RETURN,
        "32 of 64 threads returned before this barrier",
    ),
    "early return before a barrier": Planted(
        "uint i = thread_position_in_grid.x;\nout[i] = x[i];\n@\nthreadgroup_barrier(mem_flags::mem_device);",
        "if (i >= 50) return;", "if (i >= 64) return;", Defect.EARLY_RETURN,
        "14 of 64 threads returned before this barrier", line=4,
    ),
    "different barriers": Planted(
        "uint i = thread_position_in_grid.x; out[i] = x[i];\n@\nelse threadgroup_barrier(mem_flags::mem_none);",
        "if (i < 32) threadgroup_barrier(mem_flags::mem_none);",
        "if (i < 64) threadgroup_barrier(mem_flags::mem_none);",
        Defect.DIVERGENT_BARRIER, "threads of threadgroup 0 wait at different barriers: body:2 and body:3",
        line=3,
    ),
    "simd operation under a lane's condition": Planted(
        "uint i = thread_position_in_grid.x; float s = 0;\n@\nout[i] = s + simd_sum(1.0f);",
        "if (i % 2) s = simd_sum(x[i]);", "s = simd_sum(x[i]);", Defect.DIVERGENT_SIMD,
        "lanes of simdgroup 0 are in different simd operations: body:3 and body:2",
    ),
    "two simd operations of one line": Planted(
        "uint i = thread_position_in_grid.x;\n@", "out[i] = i % 2 ? simd_sum(x[i]) : simd_max(x[i]);",
        "out[i] = i / 32 ? simd_sum(x[i]) : simd_max(x[i]);", Defect.DIVERGENT_SIMD,
        "lanes of simdgroup 0 are in different simd operations: body:2 and body:2",
    ),
    "barrier here, simd operation there": Planted(
        "uint i = thread_position_in_grid.x; float s = 0;\n@\nthreadgroup_barrier(mem_flags::mem_none);\nout[i] = s;",
        "if (i == 5) s = simd_sum(x[i]);", "s = simd_sum(x[i]);", Defect.DEADLOCK,
        "threads wait for each other: 63 at the barrier at body:3, 1 in the simd operation at body:2, 0 returned",
    ),
    "too much threadgroup memory": Planted(
        "uint i = thread_position_in_grid.x;\n@\nt[i] = 1; u[i] = 1; out[i] = t[i] + u[i];",
        "threadgroup float t[8000], u[200];", "threadgroup float t[8000], u[192];", Defect.THREADGROUP_MEMORY,
        "32800 bytes of threadgroup memory with u, 32768 are allowed",
    ),
    "shuffle from a lane that has returned": Planted(
        "uint i = thread_position_in_grid.x; out[i] = 0;\nif (i % 32 > 20) return;\n@",
        "out[i] = simd_shuffle(x[i], 25);", "out[i] = simd_shuffle(x[i], 15);", Defect.MISSING_LANE,
        "thread 0 of threadgroup 0 reads a lane that has returned or never was",
    ),
    "shuffle in a threadgroup that is no multiple of 32": Planted(
        ONE_LINE, "out[i] = simd_shuffle_xor(x[i], 16);", "out[i] = simd_shuffle_xor(x[i], 3);", Defect.MISSING_LANE,
        "thread 44 of threadgroup 0 reads a lane", outputs={"out": ((60,), mx.float32)}, call={"grid": (60, 1, 1)},
    ),
    "matrix operation in part of a simdgroup": Planted(
        "simdgroup_matrix<float, 8, 8> a, b;\nsimdgroup_load(a, x); simdgroup_load(b, x);\n@\n"
        "simdgroup_store(a, out);\n",
        "simdgroup_multiply(a, a, b);", "a.thread_elements() += b.thread_elements();",
        Defect.PARTIAL_SIMDGROUP, "an operation of 32 lanes in a threadgroup of 24 threads",
        call={"grid": (24, 1, 1), "init_value": 0.0},
    ),
    "matrix beyond its buffer": Planted(
        "simdgroup_matrix<float, 8, 8> a;\n@\nsimdgroup_store(a, out);\nif (threads_per_grid.x == 1) out[0] = 1;",
        "simdgroup_load(a, x, 9);", "simdgroup_load(a, x, 8);", Defect.OUT_OF_BOUNDS, "of x, which has 256 bytes",
        call={"grid": (32, 1, 1)},
    ),
    "shift by 32": Planted(
        "uint i = thread_position_in_grid.x; uint bits = 5;\n@", "out[i] = float((bits >> i) & 1u);",
        "out[i] = i < 32 ? float((bits >> i) & 1u) : 0.0f;", Defect.UNDEFINED,
        "shift by the width or more in thread 32 of threadgroup 0",
    ),
    "signed overflow": Planted(
        ONE_LINE, "out[i] = float(int(i) * 100000000 > 0);", "out[i] = float(int(i) * 10000000 > 0);", Defect.UNDEFINED,
        "signed overflow of * in thread 22 of threadgroup 0",
    ),
    "division by zero": Planted(
        "int i = thread_position_in_grid.x;\n@", "out[i] = float(7 / (i - 3));", "out[i] = float(7 / (i + 3));",
        Defect.UNDEFINED, "integer division by zero or overflow in thread 3 of threadgroup 0",
    ),
    "float that does not fit": Planted(
        ONE_LINE, "out[i] = float(uint(x[i] - 3.0f));", "out[i] = float(uint(x[i] + 3.0f));", Defect.UNDEFINED,
        "a float that the integer type cannot hold in thread 0 of threadgroup 0",
    ),
    "masked score in a fast function": Planted(
        "uint i = thread_position_in_grid.x;\nfloat score = i % 2 ? x[i] : -INFINITY, peak = simd_max(score);\n@",
        "out[i] = fast::exp2(score - peak);", "out[i] = i % 2 ? fast::exp2(score - peak) : 0.0f;", Defect.NOT_FINITE,
        "fast::exp2 meets -infinity in thread 0 of threadgroup 0; Metal assumes that it never does",
    ),
    "infinite result of a fast function": Planted(
        ONE_LINE, "out[i] = fast::log(x[i]);", "out[i] = fast::log(x[i] + 1.0f);", Defect.NOT_FINITE,
        "fast::log gives -infinity in thread 0 of threadgroup 0",
    ),
    "NaN in an element of a vector": Planted(
        ONE_LINE, "out[i] = fast::max(float4(x[i]), float4(float2(1), float2(NAN))).x;",
        "out[i] = max(float4(x[i]), float4(float2(1), float2(NAN))).x;", Defect.NOT_FINITE,
        "fast::max meets a NaN in thread 0 of threadgroup 0",
    ),
    "comparison of an infinity in math mode fast": Planted(
        ONE_LINE, "out[i] = float((i < 9 ? -INFINITY : x[i]) < 3.0f);",
        "out[i] = float((i < 9 ? -9.0f : x[i]) < 3.0f);",
        Defect.NOT_FINITE, "a comparison meets -infinity in thread 0 of threadgroup 0",
        call={"compile_options": {"math_mode": "fast"}},
    ),
    "maximum of a half NaN in math mode fast": Planted(
        ONE_LINE, "const half h = half(x[i] - x[i]) / half(0.0f);\nout[i] = float(max(h, half(1.0f)));",
        "const half h = half(x[i] - x[i]) / half(1.0f);\nout[i] = float(max(h, half(1.0f)));", Defect.NOT_FINITE,
        "a comparison meets a NaN in thread 0 of threadgroup 0",
        call={"compile_options": {"math_mode": "fast"}},
    ),
    "address space lost in a cast": Planted(
        ONE_LINE, "const thread float* p = (const thread float*)x; out[i] = p[i];",
        "const device float* p = (const device float*)x; out[i] = p[i];", Defect.STRICT,
        "C-style cast from 'const __global float *' to 'const __private float *'",
    ),
    "small input cast to device": Planted(
        ONE_LINE, "out[i] = *(const device float*)small + x[i];", "out[i] = *(const constant float*)small + x[i];",
        Defect.STRICT, "C-style cast from 'const __constant float *' to 'const __global float *'",
    ),
    "pointer without an address space": Planted(
        ONE_LINE, "float a[2]; float* p = a; p[0] = x[i]; out[i] = p[0];",
        "float a[2]; thread float* p = a; p[0] = x[i]; out[i] = p[0];", Defect.STRICT, "p has no address space",
    ),
    "double": Planted(
        ONE_LINE, "double d = x[i]; out[i] = d;", "float d = x[i]; out[i] = d;", Defect.STRICT, "use of type 'double'",
    ),
    "variable that may hold nothing": Planted(
        ONE_LINE, "float a; if (i > 3) a = 1; out[i] = a;", "float a = 0; if (i > 3) a = 1; out[i] = a;", Defect.STRICT,
        "variable 'a' is used uninitialized",
    ),
    "C-style cast to a vector": Planted(
        ONE_LINE, "int4 n = int4(int(i)); out[i] = ((float4)n).x;", "int4 n = int4(int(i)); out[i] = (float4(n)).x;",
        Defect.LINT, "C-style cast to a vector: Metal converts, clang keeps the bits; write float4(...) instead",
    ),
    "unsuffixed literal": Planted(
        ONE_LINE, "out[i] = x[i] * 0.5;", "out[i] = x[i] * 0.5f;", Defect.LINT, "0.5 has no suffix",
    ),
    "text that is not ASCII": Planted(
        ONE_LINE, "out[i] = x[i]; // a \u00d7 b", "out[i] = x[i]; // a * b", Defect.LINT, "'\u00d7' is not ASCII",
    ),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_planted_defect_is_found_at_its_line(planted: Planted) -> None:
    report = planted.run(planted.bad)
    line = planted.body[: planted.body.index("@")].count("\n") + 1 if planted.line == 0 else planted.line
    found = [(finding.defect, finding.line) for finding in report.findings if planted.message in finding.message]
    assert found == [(planted.defect, line)], report.findings
    assert report.defects == {planted.defect}, report.findings


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_the_same_kernel_without_it_is_clean(planted: Planted) -> None:
    report = planted.run(planted.good)
    assert report.findings == ()
    assert report.completed


def test_findings_raise_unless_told_otherwise() -> None:
    source = "uint i = thread_position_in_grid.x;\nout[i] = x[i + 1];"
    with pytest.raises(
        KernelDefects, match="body:2: out_of_bounds: thread 63 of threadgroup 0 reads 4 bytes"
    ) as raised:
        run(source, {"x": X}, OUT, grid=(64, 1, 1))
    assert raised.value.report.defects == {Defect.OUT_OF_BOUNDS}


def test_a_finding_in_the_header_is_placed_there() -> None:
    header = "// helper\nfloat next(const device float* p) {\n    return p[1];\n}\n"
    options = RunOptions(raise_on_findings=False)
    source = "uint i = thread_position_in_grid.x; out[i] = next(x + i);"
    _, report = run(source, {"x": X}, OUT, grid=(64, 1, 1), header=header, options=options)
    assert [(finding.file, finding.line) for finding in report.findings] == [("header", 3)]


@pytest.mark.parametrize("math_mode", ["safe", "relaxed"])
def test_infinities_may_be_compared_in_the_other_math_modes(math_mode: str) -> None:
    source = (
        "uint i = thread_position_in_grid.x; out[i] = max(i == 3 ? -INFINITY : x[i], NAN) > -INFINITY ? 1.0f : 0.0f;"
    )
    compile_options = {"math_mode": math_mode}
    (out,), report = run(source, {"x": X}, OUT, grid=(64, 1, 1), compile_options=compile_options)
    assert report.findings == ()
    assert np.array(out).tolist() == [float(i != 3) for i in range(64)]


def test_what_is_not_finite_goes_unreported_on_demand() -> None:
    source = "uint i = thread_position_in_grid.x; out[i] = fast::log(x[i]);"
    _, report = run(source, {"x": X}, OUT, grid=(64, 1, 1), options=RunOptions(check_finite=False))
    assert report.findings == ()


def test_repeated_findings_are_counted_once() -> None:
    source = "uint i = thread_position_in_grid.x; out[i] = x[i + 64];"
    _, report = run(source, {"x": X}, OUT, grid=(64, 1, 1), options=RunOptions(raise_on_findings=False))
    assert [finding.count for finding in report.findings] == [64]
    assert str(report.findings[0]).endswith("(and 63 times more)")


def test_every_kind_of_defect_is_planted_somewhere() -> None:
    elsewhere = {
        Defect.CRASH,  # test_process.py
        Defect.TIMEOUT,
        Defect.BEYOND_CAPACITY,  # test_tensors.py
        Defect.TOO_MANY_LAYOUTS,
    }
    assert {planted.defect for planted in PLANTED.values()} | elsewhere == set(Defect)
