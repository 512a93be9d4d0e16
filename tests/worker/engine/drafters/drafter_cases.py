"""Every drafter over a tiny target that suits it: name -> case, made once."""

from collections.abc import Callable
from functools import cache

from dflash_checkpoints import FULL, SLIDING, dflash_case, first_config, second_config
from drafter_rig import DrafterCase
from mtp_checkpoints import head_for, target

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.dflash import DFlashSettings
from worker.engine.drafters.mtp import HiddenState, MtpDrafter
from worker.engine.drafters.suffix import SuffixDrafter


def suffix() -> DrafterCase:
    return DrafterCase(tiny_model("llama"), SuffixDrafter, vocabulary("llama"))


def mtp(family: str, layout: str, hidden: HiddenState) -> DrafterCase:
    head, model = head_for(family, layout), target(family)
    return DrafterCase(model, lambda: MtpDrafter(head, model, hidden=hidden), vocabulary(family))


def dflash() -> DrafterCase:
    return dflash_case(first_config, "llama", [SLIDING, FULL], DFlashSettings(min_value=0.001), sliding_window=8)


def dflash2(family: str) -> DrafterCase:
    settings = DFlashSettings(block_size=7)
    return dflash_case(second_config, family, [SLIDING, SLIDING], settings, is_causal=False, sliding_window=12)


CASES: dict[str, Callable[[], DrafterCase]] = {
    "suffix": cache(suffix),
    "dflash": cache(dflash),
    "dflash 2": cache(lambda: dflash2("qwen3_5")),
    "dflash 2, sliding target": cache(lambda: dflash2("gemma4_text")),
    "mtp": cache(lambda: mtp("qwen3_5", "raw", "normed")),
    "mtp, experts, packed": cache(lambda: mtp("qwen3_5_moe", "stand-alone", "residual")),
}
