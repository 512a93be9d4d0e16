"""A drafter that does not pay is not run: what the engine asks of it while the gate is closed, and afterwards."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_maker import EngineFor
from following_drafter import FollowingDrafter, absorbed
from plain_decoding import plain_tokens
from scripted_drafters import add_chain, chain_of
from scripted_model import ScriptedModel
from tiny_models import VOCABULARY
from toy_clock import ToyClock
from toy_requests import PROMPT_IDS, request

from bench.families import tiny_model
from worker.engine.budget import CostCurve
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.engine import Engine
from worker.engine.sampling import Sampling
from worker.engine.speculation import Speculation
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps

TOKENS = 40
KINDS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 3}}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model("llama")


def admit(engine: Engine, rounds: Iterator[bool]) -> None:
    """Let a gate that opens and closes as `rounds` says decide who drafts."""
    engine.speculation.drafts = lambda **_: next(rounds)  # type: ignore[method-assign]


def in_turn(*runs: int) -> Iterator[bool]:
    """Rounds without a draft, rounds with one, and so on; without one in the end."""
    for number, length in enumerate(runs):
        yield from [number % 2 == 1] * length
    while True:
        yield False


def text_of(target: Any, kind: str, tokens: int = TOKENS) -> list[int]:
    sampling = Sampling(**KINDS[kind]) if KINDS[kind] else None
    return plain_tokens(target, PROMPT_IDS, tokens, sampling=sampling)


def ask(engine: Engine, kind: str, **values: Any) -> list[int]:
    result, _ = engine.generate(request(**{"max_tokens": TOKENS, "ignore_eos": True, **KINDS[kind], **values}))
    assert result.token_ids is not None
    return result.token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_while_the_gate_is_closed_nothing_is_absorbed_and_then_all_at_once(
    target: Any, engine_for: EngineFor, kind: str
) -> None:
    text = text_of(target, kind)
    drafter = FollowingDrafter(chain_of(text, 3), Taps(target, blocks=(1,), normed=True))
    engine = engine_for(target, drafter=drafter, nodes=4)
    admit(engine, in_turn(12, 1, 9, 1))
    assert ask(engine, kind) == text
    assert drafter.calls[0][0] == PROMPT_IDS[:-1]
    # The round that drafted had all twelve tokens before it, and took three guesses and a token of its own.
    committed, before = [*PROMPT_IDS, *text[:-1]], len(PROMPT_IDS) - 1
    assert drafter.asked[0][0] == 12
    assert drafter.calls[1][0] == committed[before : before + 12]
    drafted = drafter.asked[1][0]
    assert drafted == 12 + {"sampled": 4, "greedy": 1}[kind] + 9
    assert drafter.calls[2][0] == committed[before + 12 : before + drafted]
    # The rest came when the text ended: rows do not wait for another one.
    assert drafter.calls[3][0] == committed[before + drafted :]
    assert len(drafter.calls) == 4
    # The block's output, and what the final norm makes of the last one, in one pass over the whole text.
    hidden = target.model.embed_tokens(mx.array([committed]))
    for number, layer in enumerate(target.layers):
        hidden = layer(hidden, "causal", None)
        if number == 1:
            tapped = hidden
    rows = np.array(mx.concatenate([tapped, target.model.norm(hidden)], axis=-1)[0])
    np.testing.assert_allclose(np.concatenate([hidden for _, hidden in drafter.calls]), rows, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_is_never_asked_sees_the_prompt_alone(target: Any, engine_for: EngineFor, kind: str) -> None:
    drafter = FollowingDrafter()
    engine = engine_for(target, drafter=drafter)
    admit(engine, in_turn())
    for _ in range(3):
        assert ask(engine, kind) == text_of(target, kind)
    # The prompt stays in the cache, and what was decoded is dropped unseen.
    assert drafter.sizes == [len(PROMPT_IDS) - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_absorbing_is_drafting_by_the_clock_but_not_that_of_a_pause(
    target: Any, engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = ToyClock()
    monkeypatch.setattr(time, "perf_counter", clock)

    class Slow(FollowingDrafter):
        """Absorbs a token in a second, and drafts in 100."""

        def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
            super().absorb(tokens, hidden, layers)
            clock.now += len(tokens)

        def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
            super().draft(tree, limits, context)
            clock.now += 100

    text = text_of(target, kind)
    engine = engine_for(target, drafter=Slow(chain_of(text, 3)), nodes=4)
    # The first round that drafts is that of the process, whose time does not count.
    admit(engine, in_turn(0, 3, 7, 4))
    _, stats = engine.generate(request(max_tokens=TOKENS, ignore_eos=True, **KINDS[kind]))
    # Each takes four tokens, which the next one absorbs. The first after the pause absorbs eleven; of greedy text while
    # a pass is under way, so that it takes one token.
    learned = [104, 104, {"greedy": 101, "sampled": 104}[kind], 104, 104]
    assert engine.speculation.panel.costs[1].samples == {1: [1000 * seconds for seconds in learned]}
    assert stats.phases.draft == 1000 * (100 + 111 + sum(learned))
    assert stats.phases.prefill == 1000 * (len(PROMPT_IDS) - 1)
    assert (stats.phases.verify, stats.phases.commit) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dear_drafter_is_found_out_before_it_drafts_beside_passes(
    target: Any, engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = ToyClock()
    monkeypatch.setattr(time, "perf_counter", clock)

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        """Guesses wrong and says so, in 50 ms where a pass takes 10."""
        add_chain(tree, wrong[emitted : emitted + 3], limits, confidence=0.05)
        clock.now += 0.05

    text = text_of(target, kind)
    wrong = [(token + 1) % VOCABULARY for token in text]
    drafter = FollowingDrafter(script)
    engine = engine_for(target, drafter=drafter, curve=CostCurve((1, 8), (10.0, 40.0)))
    engine.speculation = Speculation(engine.speculation.budget, on_device=[True])
    for _ in range(3):
        assert ask(engine, kind) == text
    # One that compiles, one that tells, and after pauses of 16 rounds probes of four each.
    assert 4 <= len(drafter.asked) <= 2 + 3 * 4
    assert engine.speculation.panel.costs[1].is_known
    assert engine.speculation.panel.costs[1].typical(1) == pytest.approx(50.0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_drafts_as_deep_as_pays(
    target: Any, engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = ToyClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    text = text_of(target, kind)

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        """Right once and then wrong, in 2 ms a level where a pass takes 10."""
        wrong = [(token + 1) % VOCABULARY for token in text[emitted + 1 : emitted + 4]]
        tree.passes = min(4, limits.depth)
        add_chain(tree, [*text[emitted : emitted + 1], *wrong][: tree.passes], limits)
        clock.now += 0.002 * tree.passes

    drafter = FollowingDrafter(script)
    drafter.levels = 4
    engine = engine_for(target, drafter=drafter, curve=CostCurve((1, 8), (10.0, 12.0)))
    engine.speculation = Speculation(engine.speculation.budget, on_device=[True], levels=[4])
    for _ in range(3):
        assert ask(engine, kind) == text
    depths = [limits.depth for _, limits in drafter.asked]
    assert depths[0] == 4
    assert depths[-20:].count(1) >= 18
    assert set(engine.speculation.panel.costs[1].samples) >= {1, 4}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tapped", [False, True])
def test_a_cancelled_text_leaves_no_rows_and_the_next_request_finds_all_in_order(
    target: Any, engine_for: EngineFor, kind: str, tapped: bool
) -> None:
    text = text_of(target, kind)
    drafter = FollowingDrafter(chain_of(text, 3), Taps(target, normed=True) if tapped else None)
    engine = engine_for(target, drafter=drafter)
    admit(engine, in_turn(0, 1, 30, 2))
    asked = iter(range(1000))
    result, _ = engine.generate(
        request(max_tokens=TOKENS, ignore_eos=True, **KINDS[kind]), should_stop=lambda: next(asked) >= 20
    )
    assert result.cancelled
    session = engine._session
    assert not session._backlog.has_rows
    assert absorbed(session.drafter_layers) == session.tokens[: len(session.tokens) - len(session._backlog)]
    assert ask(engine, kind) == text
    assert len(drafter.asked) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_leaves_nothing_that_waits(target: Any, engine_for: EngineFor, kind: str) -> None:
    text = text_of(target, kind)
    drafter = FollowingDrafter(chain_of(text, 3), Taps(target, normed=True))
    engine = engine_for(target, drafter=drafter)
    admit(engine, in_turn(20, 2))

    def fails(_: str, tokens: int) -> None:
        if tokens == 9:
            raise RuntimeError("the listener failed")

    with pytest.raises(RuntimeError):
        engine.generate(request(max_tokens=TOKENS, ignore_eos=True, **KINDS[kind]), on_tokens=fails)
    assert len(engine._session._backlog) == 0
    assert absorbed(engine._session.drafter_layers) == engine._session.tokens == []
    assert ask(engine, kind) == text
    assert len(drafter.asked) == 2


def test_a_text_without_a_next_token_leaves_nothing_that_waits(engine_for: EngineFor) -> None:
    def logits_of(prefix: Sequence[int]) -> list[float]:
        broken = len(prefix) == len(PROMPT_IDS) + 7
        return [float("nan") if broken else 0.0, *(-float(token) for token in range(1, VOCABULARY))]

    engine = engine_for(ScriptedModel(logits_of), drafter=FollowingDrafter())
    admit(engine, in_turn())
    result, _ = engine.generate(request(max_tokens=20, ignore_eos=True))
    assert result.error is not None
    assert result.error.code == "no_token_left"
    assert len(engine._session._backlog) == 0
    assert absorbed(engine._session.drafter_layers) == engine._session.tokens == []
