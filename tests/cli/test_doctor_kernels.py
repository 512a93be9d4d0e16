"""`cidermill doctor --kernels`: what runs here and why nothing better."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from mill import Mill, json_lines
from typer.testing import CliRunner

from cli import kernel_view
from cli.kernel_view import rows, show_kernels
from cli.main import app
from worker import kernel_check
from worker.engine import kernel_set
from worker.kernel_check import KernelCheck, Timing, VariantCheck

TENSOR = VariantCheck("tensor", "absent", "needs an M5")
SIMDGROUP = VariantCheck("simdgroup", "passed", None, [Timing("outputs", 1.25, 2.0), Timing("commit", 0.5, 1.0)])
WRONG = VariantCheck("simdgroup", "failed", "off by 2")
CUDA = VariantCheck("cuda", "absent", "no CUDA")


@pytest.mark.skipif(kernel_set.has_kernels(), reason="states what a machine without a GPU says")
def test_without_a_gpu_doctor_says_so(mill: Mill) -> None:
    folder = kernel_set.verdicts_folder(mill.data_dir)
    folder.mkdir(parents=True)
    (folder / "0.json").write_text("of another machine")
    done = mill.run("doctor", "--kernels")
    assert done.returncode == 0
    assert done.stderr == "MLX has neither Metal nor CUDA here: no kernel runs, its own operations are used\n"
    checks = json_lines(done.stdout)
    assert {check["kernel"] for check in checks} == set(kernel_set.KERNELS)
    assert {check["used"] for check in checks} == {"reference"}
    assert {variant["state"] for check in checks for variant in check["variants"]} == {"absent"}
    assert (folder / "0.json").exists()


def test_the_rows_say_what_is_used_and_why_nothing_before_it() -> None:
    check = KernelCheck("double", "of three", "simdgroup", [TENSOR, SIMDGROUP, CUDA])
    cells = {"kernel": "double", "configuration": "of three", "variant": "simdgroup", "state": "used"}
    assert list(rows(check)) == [
        {**cells, "reason": "tensor: needs an M5", "operation": "outputs", "own": "1.250", "stock": "2.000"},
        {**cells, "reason": "tensor: needs an M5", "operation": "commit", "own": "0.500", "stock": "1.000"},
    ]


def test_a_variant_that_failed_has_a_row_and_so_has_the_reference_in_its_place() -> None:
    other = VariantCheck("scalar", "absent", "no CUDA")
    cells = {"kernel": "double", "configuration": "of three"}
    assert list(rows(KernelCheck("double", "of three", "reference", [TENSOR, WRONG, CUDA, other]))) == [
        {**cells, "variant": "reference", "state": "used", "reason": "tensor: needs an M5; cuda, scalar: no CUDA"},
        {**cells, "variant": "simdgroup", "state": "failed", "reason": "off by 2"},
    ]


def test_the_table_has_the_beginning_of_a_long_reason() -> None:
    variant = VariantCheck("simdgroup", "failed", "\x1b[31merror: " + 1000 * "no ")
    _, row = rows(KernelCheck("double", "of three", "reference", [variant]))
    assert row["reason"] == ("\\x1b[31merror: " + 1000 * "no ")[:303] + " ..."
    assert dataclasses.asdict(variant)["reason"] == variant.reason


def test_a_variant_that_is_not_needed_is_told_to_pass() -> None:
    check = KernelCheck("double", "of three", "simdgroup", [SIMDGROUP, VariantCheck("scalar", "passed")])
    assert [(row["variant"], row["state"]) for row in rows(check)][-1] == ("scalar", "passed")


@pytest.mark.parametrize(("variants", "runs"), [([TENSOR, SIMDGROUP], True), ([WRONG], False)])
def test_doctor_fails_when_a_variant_does_that_ought_to_run(
    variants: list[VariantCheck], runs: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = list[Path]()

    def check_kernels(cases: list[kernel_check.Case], folder: Path) -> Iterator[KernelCheck]:
        folders.append(folder)
        yield KernelCheck("double", "of three", "simdgroup" if runs else "reference", variants)

    monkeypatch.setattr(kernel_check, "check_kernels", check_kernels)
    monkeypatch.setattr(kernel_set, "has_kernels", lambda: True)
    monkeypatch.setattr(kernel_view, "piped", lambda: False)
    assert show_kernels(Path("data")) is runs
    assert folders == [Path("data/kernels")]
    said = capsys.readouterr().err
    assert said == f"1/{len(kernel_check.known_cases())} double, of three: {'simdgroup' if runs else 'reference'}\n"


def test_doctor_exits_with_1_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for runs, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(kernel_view, "show_kernels", lambda _, runs=runs: runs)
        assert CliRunner().invoke(app, ["doctor", "--kernels"]).exit_code == code
