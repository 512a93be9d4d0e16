"""Every drafter over a tiny target that suits it: name -> case, made once."""

from collections.abc import Callable
from functools import cache

from drafter_rig import DrafterCase
from mtp_checkpoints import head_for, target

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.mtp import HiddenState, MtpDrafter
from worker.engine.drafters.suffix import SuffixDrafter


def suffix() -> DrafterCase:
    return DrafterCase(tiny_model("llama"), SuffixDrafter, vocabulary("llama"))


def mtp(family: str, layout: str, hidden: HiddenState) -> DrafterCase:
    head, model = head_for(family, layout), target(family)
    return DrafterCase(model, lambda: MtpDrafter(head, model, hidden=hidden), vocabulary(family))


CASES: dict[str, Callable[[], DrafterCase]] = {
    "suffix": cache(suffix),
    "mtp": cache(lambda: mtp("qwen3_5", "raw", "normed")),
    "mtp, experts, packed": cache(lambda: mtp("qwen3_5_moe", "stand-alone", "residual")),
}
