"""Which variant is chosen, what is told of the others, and that none can harm the process that chooses."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from doubling import KERNEL, PASSING_FAILURES, VICTIM, Configuration, Double, right

from kernels import gated_delta_tree, qmm, sample, tree_attention, tree_convolution
from kernels.child import Child
from kernels.probing import Choice, Kernel, checked, choose, chosen, keep, probe, remembered

SECONDS = 60.0
TOO_WIDE = "ValueError: Thread group size (512) is greater than the maximum allowed threads per threadgroup (384)."


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(mx.bfloat16, 5, tmp_path / str(os.getpid()))


def processes(configuration: Configuration) -> list[int]:
    """Those that checked a variant, in order."""
    return [int(line) for line in configuration.log.read_text().split()] if configuration.log.exists() else []


def only(*names: str) -> Kernel[Configuration, Double]:
    return dataclasses.replace(KERNEL, variants={name: KERNEL.variants[name] for name in names})


def test_the_first_that_passes_is_taken_and_the_ones_before_it_are_explained(configuration: Configuration) -> None:
    names = [name for name in KERNEL.variants if name not in {"hanging", *PASSING_FAILURES}]
    with Child(SECONDS) as child:
        choice = choose(only(*names), configuration, None, child)
    assert choice == Choice(
        "right",
        right,
        {
            "absent": "needs an M5",
            "unmakeable": "ValueError: no such input",
            "raising": "RuntimeError: no pipeline for 5",
            "too wide": TOO_WIDE,
            "aborting": "SIGABRT ended its process: the GPU fell over 5",
            "leaving": "its process ended with status 5",
            "unmakeable elsewhere": "only the parent has a GPU",
            "wrong": "5 doubled is 7",
        },
        ("unmakeable", "raising", "aborting", "leaving", "unmakeable elsewhere", "wrong"),
    )
    raised, too_wide, aborted, left, *others = processes(configuration)
    # A process that a variant failed in is asked nothing more.
    assert len({raised, too_wide, aborted, left, *others, os.getpid()}) == 6
    assert len(others) == 2
    assert len(set(others)) == 1


def test_a_variant_that_hangs_is_given_up(configuration: Configuration) -> None:
    with Child(SECONDS) as child, Child(1.0) as impatient:
        assert remembered(KERNEL, "hanging", configuration, None, impatient) == "it gave no answer within 1 s"
        assert remembered(KERNEL, "right", configuration, None, child) is None
    for process in processes(configuration):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_the_reference_is_what_remains(configuration: Configuration) -> None:
    with Child(SECONDS) as child:
        choice = choose(only("wrong"), configuration, None, child)
        assert choice == Choice("reference", right, {"wrong": "5 doubled is 7"}, ("wrong",))
        assert choose(only(), configuration, None, child).name == "reference"


def test_where_no_variant_can_run_there_is_no_child(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    assert chosen(only("absent"), configuration) == Choice("reference", right, {"absent": "needs an M5"})


def test_without_a_folder_a_process_tries_once(configuration: Configuration) -> None:
    kernel = only("wrong", "right")
    first = chosen(kernel, configuration)
    assert chosen(kernel, configuration) is first
    assert len(processes(configuration)) == 2


def test_verdicts_outlive_the_process(configuration: Configuration, tmp_path: Path) -> None:
    kernel, folder = only("aborting", "right"), tmp_path / "verdicts"
    with Child(SECONDS) as child:
        first = choose(kernel, configuration, folder, child)
        assert len(processes(configuration)) == 2
        assert choose(kernel, configuration, folder, child) == first
        assert len(processes(configuration)) == 2
        choose(kernel, configuration._replace(number=6), folder, child)
        assert len(processes(configuration)) == 4


def test_a_fresh_probe_replaces_what_is_remembered(configuration: Configuration, tmp_path: Path) -> None:
    folder = tmp_path / "verdicts"
    with Child(SECONDS) as child:
        assert remembered(KERNEL, "right", configuration, folder, child) is None
        (verdict,) = folder.iterdir()
        verdict.write_text(verdict.read_text().replace("null", '"it fell over"'))
        assert remembered(KERNEL, "right", configuration, folder, child) == "it fell over"
        assert probe(KERNEL, "right", configuration, folder, child) is None
        assert remembered(KERNEL, "right", configuration, folder, child) is None
    assert len(processes(configuration)) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"complaint": 5}', "{}"])
def test_a_verdict_that_is_no_verdict_is_found_out_again(
    content: str, configuration: Configuration, tmp_path: Path
) -> None:
    folder = tmp_path / "verdicts"
    with Child(SECONDS) as child:
        probe(KERNEL, "right", configuration, folder, child)
        (verdict,) = folder.iterdir()
        verdict.write_text(content)
        assert remembered(KERNEL, "right", configuration, folder, child) is None
    assert len(processes(configuration)) == 2


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("told to end", "SIGTERM ended its process"),
        ("without memory", "MemoryError: std::bad_alloc"),
        ("without device memory", "RuntimeError: [metal::malloc] Unable to allocate 4096 bytes."),
        (
            "aborting without memory",
            "SIGABRT ended its process: [METAL] Command buffer execution failed: Insufficient Memory (00000008)",
        ),
        ("beside a fault", f"RuntimeError: [METAL] Command buffer execution failed: {VICTIM}"),
        ("without a library", "ImportError: libcuda.so.1: cannot open shared object file"),
    ],
)
def test_a_failure_that_may_pass_is_told_and_not_remembered(
    variant: str, words: str, configuration: Configuration, tmp_path: Path
) -> None:
    folder = tmp_path / "verdicts"
    with Child(SECONDS) as child:
        assert remembered(KERNEL, variant, configuration, folder, child) == words
    assert not folder.exists()


def test_a_variant_that_hangs_is_tried_once_more(configuration: Configuration, tmp_path: Path) -> None:
    folder, given_up = tmp_path / "verdicts", "it gave no answer within 1 s"
    with Child(1.0) as child:
        for tries in (1, 2, 2):
            assert remembered(KERNEL, "hanging", configuration, folder, child) == given_up
            assert len(processes(configuration)) == tries


def test_a_variant_that_hung_once_is_used_when_it_passes(configuration: Configuration, tmp_path: Path) -> None:
    folder = tmp_path / "verdicts"
    keep(KERNEL, "right", configuration, folder, "it gave no answer within 120 s", hung=True)
    with Child(SECONDS) as child:
        for _ in range(2):
            assert remembered(KERNEL, "right", configuration, folder, child) is None
    assert len(processes(configuration)) == 1


def test_a_folder_that_cannot_be_written_costs_a_probe(configuration: Configuration, tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    with Child(SECONDS) as child:
        assert remembered(KERNEL, "right", configuration, folder, child) is None
        assert remembered(KERNEL, "right", configuration, folder, child) is None
    assert len(processes(configuration)) == 2


def test_without_a_process_nothing_is_remembered(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    folder = tmp_path / "verdicts"
    with Child(SECONDS) as child:
        complaint = remembered(KERNEL, "right", configuration, folder, child)
    assert complaint is not None
    assert complaint.startswith("there is no process to call it in: FileNotFoundError")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("script", "seconds", "words"),
    [
        ("echo no GPU >&2; exit 3", 60.0, "before it was called, its process ended with status 3: no GPU"),
        ("exec sleep 60", 0.5, "its process did not start within 0.5 s"),
    ],
)
def test_a_child_that_does_not_start_is_no_failure_of_the_variant(
    script: str,
    seconds: float,
    words: str,
    configuration: Configuration,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr("kernels.child.START_SECONDS", seconds)
    folder = tmp_path / "verdicts"
    with Child(SECONDS) as child:
        assert remembered(KERNEL, "right", configuration, folder, child) == words
    assert not folder.exists()


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="states what a machine without a GPU says")
def test_a_child_finds_every_kernel_by_its_home() -> None:
    types = (mx.bfloat16, mx.bfloat16, mx.float32, mx.bfloat16, mx.bfloat16)
    configurations: list[tuple[Kernel[Any, Any], Any]] = [
        (qmm.KERNEL, qmm.Configuration(mx.bfloat16, 64, 4)),
        (tree_attention.KERNEL, tree_attention.Configuration(mx.float16, 128)),
        (gated_delta_tree.KERNEL, gated_delta_tree.Configuration(128, 128, False, types)),
        (tree_convolution.KERNEL, tree_convolution.Configuration(mx.bfloat16, 4)),
        (sample.KERNEL, mx.float32),
    ]
    with Child(SECONDS) as child:
        for kernel, configuration in configurations:
            for variant in kernel.variants:
                assert "Metal" in child.call(checked, kernel.home, variant, configuration) or variant == "cuda"
