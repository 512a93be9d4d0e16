"""Every drafter, and mixtures, over a tiny target that suits it: name -> case, made once."""

from collections.abc import Callable
from functools import cache

from dflash_checkpoints import FULL, SLIDING, dflash_case, first_config, second_config
from drafter_rig import DrafterCase
from family_drafters import dflash2 as dflash2_for
from gemma_assistant_checkpoints import assistant_case
from mtp_checkpoints import head_for, target

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.dflash import DFlashSettings
from worker.engine.drafters.draft_model import DraftModelDrafter
from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.mixture import MixtureDrafter
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


def draft_model(family: str) -> DrafterCase:
    model, shape = tiny_model(family, seed=9), Expansion(depth=4, beam=3, children=3, min_value=0.001)
    known = vocabulary("llama")
    return DrafterCase(tiny_model("llama"), lambda: DraftModelDrafter(model, "tree", known, expansion=shape), known)


def text_and_model() -> DrafterCase:
    model = CASES["draft model"]()
    return DrafterCase(model.target, lambda: MixtureDrafter([SuffixDrafter(), model.make()]), model.vocabulary)


def text_model_and_states() -> DrafterCase:
    """Each part follows the text in its own way, and two of them read hidden states of the target."""
    parts = [CASES[name]() for name in ("suffix", "draft model", "mtp")]
    target = parts[-1].target
    blocks = dflash2_for("qwen3_5", target)
    return DrafterCase(target, lambda: MixtureDrafter([*(part.make() for part in parts), blocks]), parts[-1].vocabulary)


CASES: dict[str, Callable[[], DrafterCase]] = {
    "suffix": cache(suffix),
    "dflash": cache(dflash),
    "dflash 2": cache(lambda: dflash2("qwen3_5")),
    "dflash 2, sliding target": cache(lambda: dflash2("gemma4_text")),
    "draft model": cache(lambda: draft_model("llama")),
    "draft model, hybrid": cache(lambda: draft_model("qwen3_5")),
    "gemma assistant": cache(lambda: assistant_case("gemma4_text")),
    "mtp": cache(lambda: mtp("qwen3_5", "raw", "normed")),
    "mtp, experts, packed": cache(lambda: mtp("qwen3_5_moe", "stand-alone", "residual")),
}

MIXTURES: dict[str, Callable[[], DrafterCase]] = {
    "suffix + draft model": cache(text_and_model),
    "suffix + draft model + mtp + dflash 2": cache(text_model_and_states),
}
ALL = CASES | MIXTURES
