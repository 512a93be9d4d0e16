"""The kernels of a machine: where their verdicts are kept, and what is told of those that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kernels import gated_delta_tree, qmm, sample, tree_attention, tree_convolution
from kernels.gated_delta_tree import Configuration
from kernels.probing import Choice
from worker.engine.kernel_set import STOCK, MachineKernels, machine_kernels

run: Any = object()
"""Stands for a kernel; nothing here calls it."""


def gives(choice: Choice[Any], folders: list[Path | None]) -> Callable[..., Choice[Any]]:
    def chosen(*arguments: Any, **named: Any) -> Choice[Any]:
        folders.append(named.get("folder", arguments[-1]))
        return choice

    return chosen


def test_every_kernel_is_asked_for_with_the_folder_of_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = list[Path | None]()
    for package in (qmm, tree_attention, gated_delta_tree, tree_convolution, sample):
        monkeypatch.setattr(package, "chosen", gives(Choice("metal", run), folders))
    kernels = MachineKernels(tmp_path)
    assert kernels.product(mx.bfloat16, 64, 4) is run
    assert kernels.attention(mx.bfloat16, 128) is run
    assert kernels.recurrence(Configuration(128, 128, False, (mx.bfloat16,) * 5)) is run
    assert kernels.convolution(mx.bfloat16, 4) is run
    assert kernels.sampler(mx.bfloat16) is run
    assert folders == [tmp_path] * 5


def test_a_variant_that_ought_to_run_and_does_not_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"tensor": "off by 2", "simdgroup": "SIGABRT ended its process", "cuda": "this machine has no CUDA"}
    choice = Choice("reference", run, refused, ("tensor", "simdgroup"))
    monkeypatch.setattr(qmm, "chosen", gives(choice, []))
    told = list[str]()
    kernels = MachineKernels(notify=told.append)
    assert kernels.product(mx.bfloat16, 64, 4) is None
    assert kernels.product(mx.bfloat16, 64, 4) is None
    again = "(cidermill doctor --kernels tries it again)"
    assert told == [
        f"kernel qmm, variant tensor, is not used on this machine: off by 2 {again}",
        f"kernel qmm, variant simdgroup, is not used on this machine: SIGABRT ended its process {again}",
    ]


def test_the_beginning_of_a_compilers_log_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "\x1b[1merror\n" + 5000 * "x"
    monkeypatch.setattr(qmm, "chosen", gives(Choice("reference", run, {"tensor": log}, ("tensor",)), []))
    told = list[str]()
    MachineKernels(notify=told.append).product(mx.bfloat16, 64, 4)
    beginning = "\\x1b[1merror\\n" + (300 - len("?[1merror?")) * "x"
    again = "(cidermill doctor --kernels tries it again)"
    assert told == [f"kernel qmm, variant tensor, is not used on this machine: {beginning} ... {again}"]


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="a GPU has kernels")
def test_without_a_gpu_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    assert machine_kernels(tmp_path / "kernels") is STOCK
    assert not (tmp_path / "kernels").exists()
