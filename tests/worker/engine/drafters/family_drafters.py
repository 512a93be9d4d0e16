"""Which drafters each family can have, and random ones of every kind for its tiny model."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from dflash_checkpoints import FULL, SLIDING, first_config, random_tensors, second_config
from dflash_checkpoints import write as write_dflash
from gemma_assistant_checkpoints import SETTINGS, config_of, tensors_of
from gemma_assistant_checkpoints import write as write_assistant
from hinted_drafter import HintedDrafter
from mlx.utils import tree_flatten, tree_unflatten
from mtp_checkpoints import raw_model

from bench.families import FAMILIES, table, tiny_model, vocabulary
from worker.engine.drafters.dflash import DFlashSettings, load_dflash
from worker.engine.drafters.draft_model import DraftModelDrafter
from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.gemma_assistant import load_gemma_assistant
from worker.engine.drafters.mixture import MixtureDrafter
from worker.engine.drafters.mtp import MtpDrafter, find_mtp, load_mtp
from worker.engine.drafters.protocol import Drafter
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.verify.taps import Taps, head_and_inner
from worker.engine.verify.verifier import Mode

RUNNABLE = [name for name, family in FAMILIES.items() if family.cannot_run is None]
MODES: dict[str, Mode] = {"tree": "tree", "chain": "chain", "plain": "plain"}

# Families whose decoder blocks cannot be tapped have no block drafter. By the reason that the engine gives.
NO_INNER_MODULE = (
    "qwen exaone gpt_neox gptj internlm2 lille-130m nanochat openelm plamo talkie bailing_moe dbrx phixtral plamo3 "
    "spark2_5 afm7 bailing_moe_v3 mamba2 nemotron_h plamo2 mamba falcon_mamba rwkv7 bailing_moe_linear bailing_hybrid "
    "longcat_flash_ngram gpt2 gpt_bigcode"
)
UNTAPPABLE = {
    **dict.fromkeys(NO_INNER_MODULE.split(), "no inner module that embeds tokens and runs decoder blocks"),
    "iquestloopcoder": "runs the parts of its decoder blocks one by one",
    "gemma3n": "several streams of hidden states",
    "deepseek_v41": "several streams of hidden states",
}
WITH_HEAD = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "prism_hadamard_qwen35")
WITH_ASSISTANT = ("gemma4_text", "gemma4", "gemma4_moe")
# Draft models of other families than the target's, by turns: plain attention, recurrent, windows, short convolutions.
STRANGERS = ("llama", "qwen3_5", "gemma3_text", "lfm2")

NOISE = 0.002
DEEP = Expansion(depth=3, beam=2, children=2, min_value=0.001)
FLAT = Expansion(depth=2, beam=2, children=2, min_value=0.001)


class Verified(NamedTuple):
    """How worker/engine/verify/FAMILIES.md says that a family is verified."""

    mode: Mode
    reuses_prefixes: bool


@cache
def verified(family: str) -> Verified:
    (line,) = (line for line in table.PATH.read_text().splitlines() if line.startswith(f"| `{family}` |"))
    mode = MODES[line.split(" | ")[2]]
    # What a cache holds does not depend on how a prompt was split, unless a chain differs from one-token decoding.
    return Verified(mode, mode != "plain" and "chain: differs" not in line)


def drafters_of(family: str) -> list[str]:
    """The kinds of drafters that `family` can have; where it is decoded plainly, one that nobody will ask."""
    if verified(family).mode == "plain":
        return ["suffix"]
    kinds = ["suffix", "draft model", "mixture"]
    if family not in UNTAPPABLE:
        kinds += ["dflash", "dflash 2"]
    if family in WITH_HEAD:
        kinds.append("mtp")
    if family in WITH_ASSISTANT:
        kinds.append("gemma assistant")
    return kinds


def drafter_for(family: str, kind: str, model: Any, texts: Mapping[bool, Sequence[int]]) -> Drafter:
    """A drafter for the family's tiny `model`; texts: what follows the prompt, for hints.

    A draft model needs none: being its target with a little noise, it is right by itself.
    """
    if kind == "draft model":
        return twin(family, model)
    if kind != "mixture":
        return HintedDrafter(MAKERS[kind](family, model), texts)
    parts = [MAKERS[part](family, model) for part in drafters_of(family) if part in MIXED]
    return HintedDrafter(MixtureDrafter([*parts, stranger(family)]), texts)


def suffix(family: str, model: Any) -> Drafter:
    return SuffixDrafter()


def twin(family: str, model: Any) -> Drafter:
    """A draft model that is the target with noise on its weights, in proportion to their spread."""
    noisy = tiny_model(family)
    mx.random.seed(5)
    weights = []
    for path, weight in tree_flatten(noisy.parameters()):
        if mx.issubdtype(weight.dtype, mx.floating) and weight.size > 1:
            weight = weight + mx.random.normal(weight.shape) * (NOISE * mx.std(weight))
        weights.append((path, weight))
    noisy.update(tree_unflatten(weights))
    mx.eval(noisy.parameters())
    return DraftModelDrafter(noisy, verified(family).mode, vocabulary(family), expansion=DEEP)


def stranger(family: str) -> Drafter:
    """A draft model of another family."""
    other = STRANGERS[RUNNABLE.index(family) % len(STRANGERS)]
    return DraftModelDrafter(model_of(other), "tree", vocabulary(family), expansion=FLAT)


@cache
def model_of(family: str) -> Any:
    return tiny_model(family, seed=9)


def dflash(family: str, model: Any) -> Drafter:
    return block_drafter(first_config, [SLIDING, FULL], model, sliding_window=8)


def dflash2(family: str, model: Any) -> Drafter:
    return block_drafter(second_config, [SLIDING, SLIDING], model, sliding_window=12, is_causal=False)


def block_drafter(make_config: Callable[..., dict[str, Any]], layers: list[str], model: Any, **changes: Any) -> Drafter:
    inner = head_and_inner(model)[1]
    blocks, width = len(inner.layers), Taps(model).embed(mx.array([0])).shape[-1]
    config = make_config(layers, blocks, hidden_size=width, **changes)
    config["dflash_config"]["target_layer_ids"] = sorted({0, blocks // 2, blocks - 1})
    with tempfile.TemporaryDirectory() as directory:
        path = write_dflash(Path(directory), config, random_tensors(config))
        return load_dflash(path, model, DFlashSettings(min_value=0.001))


def mtp(family: str, model: Any) -> Drafter:
    with tempfile.TemporaryDirectory() as directory:
        raw_model(Path(directory), family)
        source = find_mtp(Path(directory))
        assert source is not None
        return MtpDrafter(load_mtp(source, model), model, expansion=DEEP)


def assistant(family: str, model: Any) -> Drafter:
    config = config_of(vocabulary(family))
    with tempfile.TemporaryDirectory() as directory:
        return load_gemma_assistant(write_assistant(Path(directory), config, tensors_of(config)), model, SETTINGS)


MAKERS: dict[str, Callable[[str, Any], Drafter]] = {
    "suffix": suffix,
    "dflash": dflash,
    "dflash 2": dflash2,
    "mtp": mtp,
    "gemma assistant": assistant,
}
# What a mixture is made of beside a draft model of another family.
MIXED = ("suffix", "dflash 2", "mtp", "gemma assistant")
