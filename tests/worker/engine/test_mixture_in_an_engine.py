"""The drafters of a mixture in an engine: who is not asked rests, and is up to date when it is asked again."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from engine_maker import EngineFor
from following_drafter import FollowingDrafter
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, chain_of
from tiny_models import VOCABULARY
from toy_requests import PROMPT_IDS, request

from bench.families import tiny_model
from worker.engine.budget import CostCurve
from worker.engine.draft_cost import DraftCost
from worker.engine.drafters.mixture import MixtureDrafter, members_of
from worker.engine.drafters.protocol import Asked, Drafter
from worker.engine.engine import Engine
from worker.engine.sampling import Sampling
from worker.engine.speculation import Speculation
from worker.engine.verify.taps import Taps

KINDS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 3}}
TOKENS = 120


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model("llama")


def text_of(target: Any, kind: str) -> list[int]:
    return plain_tokens(target, PROMPT_IDS, TOKENS, sampling=Sampling(**KINDS[kind]) if KINDS[kind] else None)


def mixed(engine: Engine, drafters: Sequence[Drafter], costs: dict[int, DraftCost] | None = None) -> Engine:
    """`engine` with a mixture in place of its drafter."""
    engine.drafter = MixtureDrafter(drafters)
    on_device = [bool(one.new_cache()) for one in members_of(engine.drafter)]
    engine.speculation = Speculation(engine.speculation.budget, costs=costs, on_device=on_device)
    return engine


def ask(engine: Engine, kind: str) -> list[int]:
    result, _ = engine.generate(request(max_tokens=TOKENS, ignore_eos=True, **KINDS[kind]))
    assert result.token_ids is not None
    return result.token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_dear_drafter_rests_while_the_other_one_drafts_on(target: Any, engine_for: EngineFor, kind: str) -> None:
    text = text_of(target, kind)
    cheap = ScriptedDrafter(chain_of(text, 2))
    wrong = [(token + 1) % VOCABULARY for token in text]
    dear = FollowingDrafter(chain_of(wrong, 2), Taps(target, normed=True))
    # What it took before says that a draft costs ten passes.
    engine = mixed(
        engine_for(target, curve=CostCurve((1, 4), (1000.0, 1200.0))),
        [cheap, dear],
        {2: DraftCost({1: [10_000.0] * 33})},
    )
    assert ask(engine, kind) == text
    assert engine.speculation.panel.members[1].gate.state != "open"
    assert engine.speculation.panel.members[0].gate.state == "open"
    # Three tokens a round: forty rounds, of which the dear one has a few.
    assert len(cheap.asked) >= TOKENS // 3
    assert len(dear.asked) <= 12
    # It absorbed the prompt, then what led to a draft of its own, and the rest in the end.
    assert len(dear.sizes) <= 2 + len(dear.asked)
    assert sum(dear.sizes) == len(PROMPT_IDS) + TOKENS - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_asked_has_all_of_the_text_and_nobody_changes_it(
    target: Any, engine_for: EngineFor, kind: str, seed: int
) -> None:
    text = text_of(target, kind)
    drafters = [
        FollowingDrafter(chain_of(text, 2), Taps(target, blocks=(1,))),
        ScriptedDrafter(chain_of([*text[:50], *reversed(text)], 3)),
        FollowingDrafter(chain_of(text[::-1], 2), Taps(target, normed=True)),
    ]
    engine, rng = mixed(engine_for(target, curve=CostCurve((1, 4), (10.0, 11.0))), drafters), random.Random(seed)
    bits = [rng.choice([0, 0b001, 0b010, 0b100, 0b011, 0b110, 0b111]) for _ in range(10_000)]
    rounds = iter(bits)

    def ask_some(beside_pass: bool = False) -> Asked | None:
        who = next(rounds)
        return Asked(who) if who else None

    engine.speculation.panel.ask = ask_some  # type: ignore[method-assign]
    engine.speculation.panel.on_trial = lambda _: []  # type: ignore[method-assign]
    for _ in ("cold", "warm"):
        assert ask(engine, kind) == text
    # Each FollowingDrafter looked at its layers whenever it drafted.
    assert all(len(drafter.asked) > 5 for drafter in drafters)
