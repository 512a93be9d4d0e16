"""Texts of every family with every drafter, and the plain decoding that they have to equal."""

from functools import lru_cache
from typing import Any, Literal, NamedTuple

from engine_maker import EngineFor
from family_drafters import RUNNABLE, drafter_for, drafters_of, verified
from family_exactness import Case

from bench.families import FAMILIES, tiny_model
from bench.families.models import Group

Sampling = Literal["greedy", "sampled"]
Start = Literal["cold", "reused"]

# Long enough to be kept as a snapshot, with passages that come again.
PROMPT = "the-cat+sat,the-cat+ran,a~cat+sat,the-dog+ran"
TOKENS = 20
PENALISED = {
    "temperature": 0.9,
    "top_p": 0.97,
    "top_k": 40,
    "seed": 11,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "penalty_context_size": 32,
    "logit_bias": {9: 1.5},
}
SAMPLING: dict[Sampling, dict[str, Any]] = {"greedy": {}, "sampled": PENALISED}
CASES = {name: Case(prompt=PROMPT, tokens=TOKENS, sampling=values) for name, values in SAMPLING.items()}
# A batch, so that earlier answers may be looked at.
REQUEST = "batch_01M8M5X2V3YSQJ3RNYHMH0DS7X-0"
NODES = 10

# Each file of tests takes the families of some groups.
FILES: dict[str, tuple[Group, ...]] = {
    "dense": ("dense", "learned positions", "position-scaled queries", "upstream defect"),
    "experts": ("moe", "mla", "indexer"),
    "windows": ("sliding window", "own mask", "cross-layer kv"),
    "recurrent": ("gated delta hybrid", "mamba2 hybrid", "short convolution", "other recurrent", "own cache"),
}


class Subject(NamedTuple):
    """The tiny model of a family, and what plain decoding says with it."""

    model: Any
    texts: dict[Sampling, list[int]]


def pairs(file: str) -> list[tuple[str, str]]:
    """Family and drafter; those of one family stand together, as its plain texts are kept for one family only."""
    families = [name for name in RUNNABLE if FAMILIES[name].group in FILES[file]]
    return [(family, kind) for family in families for kind in drafters_of(family)]


def runs(family: str, kind: str) -> list[tuple[Sampling, Start]]:
    """All four for the drafters that cost little.

    Of the others two each, so that both kinds of block drafters, or of draft models, have all four between them, and a
    drafter has the other two over the next family.
    """
    crossed: list[tuple[Sampling, Start]] = [("greedy", "cold"), ("sampled", "reused")]
    straight: list[tuple[Sampling, Start]] = [("sampled", "cold"), ("greedy", "reused")]
    if kind not in ("dflash", "dflash 2", "draft model", "mixture"):
        return [crossed[0], straight[1], straight[0], crossed[1]]
    return crossed if (RUNNABLE.index(family) + (kind in ("dflash", "draft model"))) % 2 else straight


@lru_cache(maxsize=1)
def subject(family: str) -> Subject:
    model = tiny_model(family)
    return Subject(model, {sampling: case.plain(model) for sampling, case in CASES.items()})


def assert_plain_texts(engine_for: EngineFor, family: str, kind: str) -> None:
    """The texts of one drafter over one family: greedy and sampled with penalties, from cold and with a reused prompt.

    In their course it is right and it is wrong.
    """
    model, texts = subject(family)
    drafter = drafter_for(family, kind, model, {False: texts["greedy"], True: texts["sampled"]})
    mode, reuses = verified(family)
    engine = engine_for(model, nodes=NODES, drafter=drafter, mode=mode, reuses_prefixes=reuses)
    accepted = rejected = 0
    for sampling, start in runs(family, kind):
        if start == "cold":
            engine.forget()
        result, stats = engine.generate(CASES[sampling].request.model_copy(update={"request_id": REQUEST}))
        assert result.token_ids == texts[sampling], (sampling, start)
        assert result.usage is not None
        assert result.usage.cached_prompt_tokens == (len(PROMPT) - 1 if start == "reused" and reuses else 0)
        assert (stats.verification, stats.drafter) == (mode, drafter.name)
        accepted += stats.accepted_tokens
        rejected += stats.drafted_tokens - stats.accepted_tokens
    if mode == "plain":
        assert accepted == rejected == 0
    else:
        assert accepted > 8
        assert rejected > 2
