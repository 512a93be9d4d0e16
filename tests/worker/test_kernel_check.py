"""What is told of the kernels on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import emulated_products
import mlx.core as mx
import pytest
from doubled_arrays import KERNEL, two_operations

from api.errors import StorageError
from kernels import gated_delta_tree, qmm, sample, tree_attention, tree_convolution
from kernels.child import Child
from kernels.probing import choose, remembered
from worker import kernel_check, kernel_problems
from worker.engine.kernel_set import has_kernels
from worker.kernel_check import Case, KernelCheck, VariantCheck, check_kernels, known_cases
from worker.kernel_problems import Operation

SECONDS = 60.0


def case(*names: str, words: str = "of ones") -> Case:
    kernel = dataclasses.replace(KERNEL, variants={name: KERNEL.variants[name] for name in names})
    return Case(kernel, words, words, two_operations)


def checked(one: Case, folder: Path | None = None) -> KernelCheck:
    (check,) = check_kernels([one], folder, SECONDS)
    return check


def test_every_variant_is_tried_and_the_first_that_passes_is_used() -> None:
    names = [name for name in KERNEL.variants if name != "hanging"]
    check = checked(case(*names))
    assert (check.kernel, check.configuration, check.used) == ("double", "of ones", "right")
    too_wide = "ValueError: Thread group size (512) is greater than the maximum allowed threads per threadgroup (384)."
    large = "doubled at the size of a verification pass: off by 0.25 of the largest value"
    assert [(variant.name, variant.state, variant.reason) for variant in check.variants] == [
        ("absent", "absent", "needs an M5"),
        ("unmakeable", "failed", "FileNotFoundError: no text"),
        ("too wide", "absent", too_wide),
        ("wrong", "failed", "doubled to [3.0, 5.0] with of ones"),
        ("wrong when large", "failed", large),
        ("raising when large", "failed", "RuntimeError: no memory"),
        ("aborting when large", "failed", "SIGABRT ended its process: GPU Address Fault Error"),
        ("right", "passed", None),
        ("right too", "passed", None),
    ]
    for variant in check.variants[-2:]:
        assert [timing.operation for timing in variant.timings] == ["doubled", "twice"]
        assert all(timing.milliseconds > 0 and timing.stock_milliseconds > 0 for timing in variant.timings)
    assert not any(variant.timings for variant in check.variants[:-2])


def test_where_nothing_passes_the_reference_is_used() -> None:
    assert checked(case("absent", "wrong")).used == "reference"
    assert checked(case()) == KernelCheck("double", "of ones", "reference", [])


def test_a_variant_that_hangs_is_waited_for_once() -> None:
    cases = [case("hanging", words="of ones"), case("hanging", words="of twos")]
    assert [check.variants for check in check_kernels(cases, None, 1.0)] == [
        [VariantCheck("hanging", "failed", "it gave no answer within 1 s")],
        [VariantCheck("hanging", "failed", "not tried, after it hung with of ones")],
    ]


def test_workers_go_by_the_verdicts_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    one = case("wrong when large", "right")
    with Child(SECONDS) as child:
        # A worker sees small problems alone. Of another configuration, doctor finds nothing out.
        assert choose(one.kernel, "of ones", folder, child).name == "wrong when large"
        assert choose(one.kernel, "of twos", folder, child).name == "wrong when large"
        assert len(list(folder.iterdir())) == 2
        checked(one, folder)
        assert len(list(folder.iterdir())) == 2
        complaint = remembered(one.kernel, "wrong when large", "of ones", folder, child)
        assert complaint is not None
        assert complaint.startswith("doubled at the size of a verification pass")
        assert choose(one.kernel, "of ones", folder, child).name == "right"


def test_a_verdict_that_cannot_be_removed_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    path.mkdir()
    with pytest.raises(StorageError, match="cannot be removed") as error:
        checked(case("right"), tmp_path)
    assert str(error.value).startswith(f"{path}: what an earlier check of kernels found")
    assert "remove it yourself" in str(error.value)


@pytest.mark.parametrize(
    "operations",
    [
        kernel_problems.products(qmm.Configuration(mx.float32, 64, 4), 128, 64, 0),
        kernel_problems.attentions(tree_attention.Configuration(mx.float32, 64), 40, 0),
        kernel_problems.recurrences(gated_delta_tree.Configuration(64, 32, True, (mx.float32,) * 5), 2, 4, 2),
        kernel_problems.convolutions(tree_convolution.Configuration(mx.float32, 4), 24, 2),
        kernel_problems.draws(mx.float32, 300, 2),
    ],
    ids=["products", "attentions", "recurrences", "convolutions", "draws"],
)
def test_the_reference_passes_at_its_own_problems_and_a_little_off_does_not(
    operations: list[kernel_problems.Operation[object]],
) -> None:
    references = {
        "product": qmm.reference,
        "attention": tree_attention.reference,
        "outputs": gated_delta_tree.reference(),
        "commit": gated_delta_tree.reference(),
        "advance": gated_delta_tree.reference(),
        "convolution": tree_convolution.reference,
        "draw": sample.reference_sample,
    }
    for operation in operations:
        found = operation.calls(references[operation.name])
        assert operation.count == 2
        assert len(found) == (4 if operation.name == "advance" else 2)
        assert operation.complaint(found, operation.exact()) is None
        off = [*found[:-1], found[-1] + 0.05 * mx.abs(found[-1]).max()]
        assert operation.complaint(off, operation.exact()) is not None
        assert operation.complaint([mx.full(found[0].shape, mx.nan), *found[1:]], operation.exact()) is not None


@pytest.mark.parametrize(("enough", "calls"), [(0.0, 2), (60.0, 1 + kernel_check.TURNS)])
def test_what_takes_long_is_timed_less_often(enough: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_check, "ENOUGH_SECONDS", enough)
    made: list[int] = []

    def doubled(run: Callable[[int], int]) -> list[mx.array]:
        made.append(run(len(made)))
        return []

    found, milliseconds = kernel_check._timed(Operation("doubled", 1, doubled, list, 0.01), lambda number: 2 * number)
    assert made == [2 * number for number in range(calls)]
    assert found == []
    assert milliseconds > 0


def test_the_metal_texts_pass_in_the_emulator() -> None:
    configuration = qmm.Configuration(mx.bfloat16, 64, 4)
    one = Case(emulated_products.KERNEL, "4 bit, group 64", configuration, emulated_products.small_products)
    check = checked(one)
    assert [(variant.name, variant.state, variant.reason) for variant in check.variants] == [
        ("tensor", "passed", None),
        ("simdgroup", "passed", None),
    ]
    assert [timing.operation for variant in check.variants for timing in variant.timings] == ["product", "product"]


def test_the_cases_are_all_that_the_kernels_have_each_once() -> None:
    cases = known_cases()
    names = [one.kernel.name for one in cases]
    kernels = (qmm, tree_attention, gated_delta_tree, tree_convolution, sample)
    assert [names.count(kernel.KERNEL.name) for kernel in kernels] == [3 * 2 * 3, 3 * 5, 3 * 2 * 3 + 2 + 3, 3, 3]
    assert len({(one.kernel.name, one.configuration) for one in cases}) == len(cases)
    assert len({(one.kernel.name, one.words) for one in cases}) == len(cases)


@pytest.mark.skipif(has_kernels(), reason="a GPU has kernels")
def test_without_a_gpu_every_kernel_is_its_reference_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    for check in check_kernels(known_cases(), None):
        assert check.used == "reference"
        assert all(variant.state == "absent" and variant.reason for variant in check.variants)


@pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal: a text that Apple's compiler refuses shows here")
def test_on_a_mac_every_metal_kernel_runs() -> None:
    for check in check_kernels(known_cases(), None):
        assert check.used in ("tensor", "simdgroup", "metal"), check
        assert not [variant for variant in check.variants if variant.state == "failed"], check
