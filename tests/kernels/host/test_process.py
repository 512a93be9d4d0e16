"""Kernels that end their process, never end, or need another way to switch: the caller goes on."""

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from host_runs import run

from kernels.host import Defect, Report, RunOptions, build, process

X = np.arange(64, dtype=np.float32)
CLEAN = "uint i = thread_position_in_grid.x; out[i] = x[i] + simd_sum(1.0f);"


def report_of(source: str, **options: Any) -> Report:
    chosen = RunOptions(raise_on_findings=False, static_checks=False, **options)
    return run(source, {"x": X}, {"out": ((64,), mx.float32)}, grid=(64, 1, 1), options=chosen)[1]


def check_that_runs_go_on() -> None:
    (out,), report = run(CLEAN, {"x": X}, {"out": ((64,), mx.float32)}, grid=(64, 1, 1))
    assert np.array_equal(np.array(out), X + 32)
    assert report.findings == ()


def test_wild_pointer_into_private_memory() -> None:
    source = """uint i = thread_position_in_grid.x;
        out[i] = x[i];
        if (i == 40) { thread float* p = (thread float*)(ulong(out[i]) + 16ul); p[0] = 1.0f; out[i] = p[1]; }"""
    report = report_of(source)
    assert [(finding.defect, finding.line) for finding in report.findings] == [(Defect.CRASH, 3)]
    assert "thread 40 of threadgroup 0" in report.findings[0].message
    assert "SIGSEGV" in report.findings[0].message or "SIGBUS" in report.findings[0].message
    assert not report.completed
    check_that_runs_go_on()


def test_private_arrays_beyond_the_stack() -> None:
    source = """uint i = thread_position_in_grid.x;
        float a[200000];
        for (int n = 0; n < 200000; ++n) a[n] = x[i];
        out[i] = a[int(x[i])];"""
    report = report_of(source, metered=False)
    assert report.defects == {Defect.CRASH}
    assert "its stack of 256 KiB is full" in report.findings[0].message
    check_that_runs_go_on()


def test_endless_loop() -> None:
    source = "uint i = thread_position_in_grid.x; volatile uint n = 0; while (n < 2) n = i & 1; out[i] = x[i];"
    report = report_of(source, cpu_seconds=0.2)
    assert report.defects == {Defect.TIMEOUT}
    assert "still running at the limit of cpu_seconds" in report.findings[0].message
    check_that_runs_go_on()


def test_a_process_that_dies_between_runs_is_replaced() -> None:
    check_that_runs_go_on()
    child = process._child
    assert child is not None
    child.process.kill()
    child.process.wait()
    check_that_runs_go_on()
    assert process._child is not child


def test_division_by_zero_is_a_crash_without_the_meter_only_where_the_machine_traps() -> None:
    source = "int i = thread_position_in_grid.x; out[i] = float(7 / (i - 3));"
    assert report_of(source, metered=False).defects <= {Defect.CRASH}
    assert report_of(source).defects == {Defect.UNDEFINED}
    check_that_runs_go_on()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has deprecated ucontext, and a switch for its processors")
def test_ucontext_switches_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        threadgroup float t[64];
        uint i = thread_position_in_grid.x;
        t[i] = simd_sum(x[i]) * x[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[i] = t[63 - i] + simd_shuffle_xor(t[i], 1);
    """
    arguments = source, {"x": X}, {"out": ((64,), mx.float32)}
    (native,), native_report = run(*arguments, grid=(64, 1, 1))
    monkeypatch.setattr(build, "runtime_defines", ("-DHOST_UCONTEXT",))
    (portable,), report = run(*arguments, grid=(64, 1, 1))
    assert mx.array_equal(native, portable)
    assert report.switches == native_report.switches
    assert report_of("uint i = thread_position_in_grid.x; out[i] = 7 / (int(i) - 3);").defects == {Defect.UNDEFINED}


def test_a_text_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIDERMILL_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(process, "runtime_library", lambda: Path(process._child.runtime))  # type: ignore[union-attr]
    built: list[str] = []
    stage = build.clang
    monkeypatch.setattr(build, "clang", lambda arguments, folder: (built.append(folder.name), stage(arguments, folder)))
    for source in (CLEAN, CLEAN, CLEAN + " // changed"):
        run(source, {"x": X}, {"out": ((64,), mx.float32)}, grid=(64, 1, 1))
    assert len(set(built)) == 2
    # A library and what the strict pass said for each text; no remains of the builds.
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".json", ".so", ".so"]
