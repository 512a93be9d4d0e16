"""Which variant is chosen, and what is told of the others."""

from collections.abc import Callable

from kernels.probing import Choice, UnavailableError, Variant, choose

Double = Callable[[int], int]


def right(number: int) -> int:
    return 2 * number


def wrong(number: int) -> int:
    return number + 2


def crashing(number: int) -> int:
    raise RuntimeError(f"no pipeline\n  for {number}")


def absent() -> Double:
    raise UnavailableError("needs an M5")


def check(run: Double) -> str | None:
    got = run(5)
    return None if got == 10 else f"5 doubled is {got}"


REFERENCE = Variant[Double]("reference", lambda: right)


def test_the_first_that_passes_is_taken_and_the_ones_before_it_are_explained() -> None:
    variants = [
        Variant[Double]("tensor", absent),
        Variant[Double]("crashing", lambda: crashing),
        Variant[Double]("wrong", lambda: wrong),
        Variant[Double]("simdgroup", lambda: right),
        Variant[Double]("never looked at", absent),
    ]
    assert choose(variants, check, REFERENCE) == Choice(
        "simdgroup",
        right,
        {"tensor": "needs an M5", "crashing": "RuntimeError: no pipeline for 5", "wrong": "5 doubled is 7"},
    )


def test_the_reference_is_what_remains() -> None:
    assert choose([Variant[Double]("wrong", lambda: wrong)], check, REFERENCE) == Choice(
        "reference", right, {"wrong": "5 doubled is 7"}
    )
    assert choose([], check, REFERENCE).name == "reference"
