"""Every drafter over a tiny target that suits it: name -> case, made once."""

from collections.abc import Callable
from functools import cache

from drafter_rig import DrafterCase

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.suffix import SuffixDrafter


def suffix() -> DrafterCase:
    return DrafterCase(tiny_model("llama"), SuffixDrafter, vocabulary("llama"))


CASES: dict[str, Callable[[], DrafterCase]] = {
    "suffix": cache(suffix),
}
