"""`cidermill doctor --kernels`: what runs here and why nothing better."""

from mill import Mill, json_lines

from cli.kernel_view import cells
from worker.kernel_check import KernelCheck


def test_doctor_tells_which_kernels_run(mill: Mill) -> None:
    done = mill.run("doctor", "--kernels")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json_lines(done.stdout)
    assert {row["kernel"] for row in rows} == {"qmm", "tree_attention", "gated_delta_tree", "sample"}
    for row in rows:
        assert (row["variant"] == "reference") == (row["milliseconds"] is None)


def test_a_reason_is_told_once_for_all_variants_that_it_keeps_from_running() -> None:
    check = KernelCheck("double", "of three", "simdgroup", {"a": "no Metal", "b": "no Metal", "c": "off by 2"}, 1.25, 2)
    assert cells(check) == {
        "kernel": "double",
        "configuration": "of three",
        "variant": "simdgroup",
        "own": "1.250",
        "stock": "2.000",
        "refused": "a, b: no Metal; c: off by 2",
    }
