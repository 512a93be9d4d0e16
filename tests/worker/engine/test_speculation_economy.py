"""Budget, calibration, draft cost and gate together, on synthetic drafters whose acceptance is known."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from worker.engine.budget import Budget, CostCurve
from worker.engine.calibration import Calibration
from worker.engine.draft_cost import DraftCost
from worker.engine.speculation import Speculation
from worker.engine.tree import TokenTree

RIGHT = 1
# A pass over 2 nodes costs half as much again, one over 8 nodes twice as much.
CURVE = CostCurve((1, 2, 8), (10.0, 15.0, 20.0))


@dataclass
class Outcome:
    """Tokens and time of a simulated text, and how many of its rounds drafted."""

    tokens: int = 0
    milliseconds: float = 0.0
    rounds: int = 0
    drafted: int = 0

    @property
    def speedup(self) -> float:
        return self.tokens / self.milliseconds * CURVE.cost(1)


def chain(rng: random.Random, depth: int) -> TokenTree:
    """A drafter's guess: `depth` tokens, each with a confidence of its own."""
    tree = TokenTree(0)
    for node in range(depth):
        tree.add(node, 2 + node, rng.random())
    return tree


def decode(
    speculation: Speculation,
    acceptance: Callable[[float], float],
    *,
    tokens: int,
    draft_ms: float,
    depth: int = 7,
    seed: int = 0,
) -> Outcome:
    """Simulate a text: a guess of confidence c whose parent was right is right with probability acceptance(c)."""
    rng, done = random.Random(seed), Outcome()
    speculation.start_request()
    while done.tokens < tokens:
        done.rounds += 1
        if speculation.drafts():
            done.drafted += 1
            done.milliseconds += draft_ms
            draft = chain(rng, depth)
            chosen = speculation.choose(draft, draft_ms)
            run = 0
            while run < depth and rng.random() < acceptance(draft.confidences[run + 1]):
                run += 1
        else:
            draft, run = TokenTree(0), 0
            chosen = speculation.pass_over(draft)
        accepted = min(run, len(chosen) - 1)
        # The right guess is the draft's own token; where it is wrong, the target says something else.
        emitted = [*draft.tokens[1 : accepted + 1], draft.tokens[accepted + 1] if accepted < run else RIGHT]
        done.milliseconds += CURVE.cost(len(chosen))
        done.tokens += len(emitted)
        speculation.learn(emitted)
    return done


@pytest.mark.parametrize(
    "acceptance",
    [
        pytest.param(lambda confidence: confidence, id="honest"),
        pytest.param(lambda confidence: confidence**3, id="boastful"),
        pytest.param(lambda confidence: confidence**0.3, id="modest"),
        pytest.param(lambda confidence: 0.5, id="indifferent"),
        pytest.param(lambda confidence: 0.9 if confidence > 0.6 else 0.1, id="a step"),
    ],
)
def test_calibration_finds_the_acceptance_of_a_synthetic_drafter(acceptance: Callable[[float], float]) -> None:
    speculation = Speculation(Budget(CURVE))
    for seed in range(60):
        decode(speculation, acceptance, tokens=150, draft_ms=0.0, seed=seed)
    speculation.start_request()
    for confidence in (0.175, 0.45, 0.55, 0.65, 0.75, 0.85, 0.98):
        tree = TokenTree(0)
        tree.add(0, RIGHT, confidence)
        speculation.calibration.appraise(tree)
        assert tree.values[1] == pytest.approx(acceptance(confidence), abs=0.09), confidence


def test_a_good_drafter_gains_what_an_oracle_would() -> None:
    # Guesses are right with 0.9: a chain of eight promises (1 - 0.9^8) / 0.1 = 5.7 tokens for 2 + 0.1 plain passes.
    speculation = Speculation(Budget(CURVE))
    for seed in range(3):
        decode(speculation, lambda _: 0.9, tokens=200, draft_ms=1.0, seed=seed)
    outcome = decode(speculation, lambda _: 0.9, tokens=5000, draft_ms=1.0, seed=9)
    assert outcome.drafted == outcome.rounds
    assert outcome.speedup > 0.95 * 5.7 / 2.1


@pytest.mark.parametrize(("draft_ms", "least"), [(5.0, 0.97), (20.0, 0.93)])
def test_a_drafter_that_does_not_pay_costs_little(draft_ms: float, least: float) -> None:
    # 0.1 of the guesses are right: no tree pays, and drafting every time would cost half a pass, or two.
    speculation = Speculation(Budget(CURVE))
    decode(speculation, lambda _: 0.1, tokens=100, draft_ms=draft_ms)
    outcome = decode(speculation, lambda _: 0.1, tokens=2000, draft_ms=draft_ms, seed=1)
    assert outcome.drafted < 0.04 * outcome.rounds
    assert outcome.speedup > least


def test_a_slow_drafter_is_refused_although_its_guesses_are_good() -> None:
    # 5.7 tokens a round would pay twice over, but not when drafting takes seven plain passes.
    speculation = Speculation(Budget(CURVE))
    outcome = decode(speculation, lambda _: 0.9, tokens=3000, draft_ms=70.0)
    assert outcome.drafted < 0.04 * outcome.rounds
    assert outcome.speedup > 0.9


def test_it_notices_when_the_drafter_becomes_good() -> None:
    speculation = Speculation(Budget(CURVE))
    decode(speculation, lambda _: 0.05, tokens=3000, draft_ms=5.0)
    assert speculation.panel.members[0].gate.state == "closed"
    outcome = decode(speculation, lambda _: 0.95, tokens=600, draft_ms=5.0, seed=2)
    # An oracle would reach 6.6 tokens for 2.5 plain passes, 2.7 times plain decoding.
    assert outcome.drafted > 0.5 * outcome.rounds
    assert outcome.speedup > 1.8


def test_every_text_may_be_another_one() -> None:
    """Texts that suit the drafter and texts that do not, by turns: the first gain, the others lose little."""
    speculation = Speculation(Budget(CURVE))
    for seed in range(6):
        decode(speculation, lambda _: 0.95, tokens=300, draft_ms=3.0, seed=seed)
        decode(speculation, lambda _: 0.05, tokens=300, draft_ms=3.0, seed=seed)
    assert decode(speculation, lambda _: 0.95, tokens=300, draft_ms=3.0, seed=50).speedup > 2
    assert decode(speculation, lambda _: 0.05, tokens=300, draft_ms=3.0, seed=51).speedup > 0.85


def test_a_fixed_budget_drafts_whatever_it_costs() -> None:
    speculation = Speculation(Budget(CURVE, fixed_nodes=4))
    outcome = decode(speculation, lambda _: 0.0, tokens=300, draft_ms=100.0)
    assert outcome.drafted == outcome.rounds == 300


def test_a_draft_beside_a_pass_is_free_on_the_host_and_costs_its_median_on_the_device() -> None:
    calibration, cost = Calibration(), DraftCost({1: [5.0]})
    tree = TokenTree(0)
    tree.add(0, RIGHT, 0.55)
    # 1.55 tokens in 15 ms beat one in 10 ms, but with 5 ms for the draft 1.55 / 20 beats 1 / 15 by more still;
    # so the gate shows the difference: 1.55 tokens for 1.5 or for 2 plain passes.
    on_host = Speculation(Budget(CURVE), calibration, {1: cost})
    on_device = Speculation(Budget(CURVE), calibration, {1: cost}, on_device=[True])
    for _ in range(40):
        for speculation in (on_host, on_device):
            if speculation.drafts():
                speculation.choose(tree, 99.0, beside_pass=True)
    assert on_host.panel.members[0].gate.state == "open"
    assert on_device.panel.members[0].gate.state != "open"
    assert cost.samples == {1: [5.0]}


@pytest.mark.parametrize(("acceptance", "draft_ms", "drafts"), [(0.1, 50.0, (2, 30)), (0.9, 1.0, (400, 500))])
def test_a_drafter_of_the_device_is_timed_before_it_drafts_beside_a_pass(
    acceptance: float, draft_ms: float, drafts: tuple[int, int]
) -> None:
    """Greedy text: passes are queued ahead while no draft pays, and a draft's time cannot be told from theirs."""
    rng, speculation = random.Random(1), Speculation(Budget(CURVE), on_device=[True])
    speculation.start_request()
    drafted = beside = 0
    ahead = False
    for _ in range(500):
        draft, run = TokenTree(0), 0
        if speculation.drafts(beside_pass=ahead):
            drafted, beside = drafted + 1, beside + ahead
            for node in range(7):
                draft.add(node, 2 + node, acceptance)
            while run < 7 and rng.random() < acceptance:
                run += 1
            assert not ahead or speculation.panel.costs[1].is_known
            chosen = speculation.choose(draft, 9 * draft_ms if ahead else draft_ms, beside_pass=ahead)
        else:
            chosen = speculation.pass_over(draft)
        accepted = 0 if ahead else min(run, len(chosen) - 1)
        ahead = len(chosen) == 1 and not speculation.measuring
        following = draft.tokens[accepted + 1] if accepted < run else RIGHT
        speculation.learn([*draft.tokens[1 : accepted + 1], following])
    assert drafts[0] <= drafted <= drafts[1]
    assert speculation.panel.costs[1].typical(1) == draft_ms
    assert beside > 0 or acceptance > 0.5


def test_the_first_draft_after_a_pause_is_charged_and_teaches_what_the_others_take() -> None:
    cost = DraftCost({1: [4.0]})
    speculation = Speculation(Budget(CURVE), Calibration(), {1: cost})
    tree = TokenTree(0)
    tree.add(0, RIGHT, 0.98)

    def charged(draft_ms: float) -> float:
        """Plain passes that the gate was told a round costs, less those of its own pass."""
        recorded: list[float] = []
        speculation.panel.members[0].gate.record = lambda tokens, cost: recorded.append(cost)  # type: ignore[method-assign]
        nodes = len(speculation.choose(tree, draft_ms))
        return recorded[0] * CURVE.cost(1) - CURVE.cost(nodes)

    speculation.start_request()
    assert charged(900.0) == pytest.approx(4.0)  # the first draft of the process
    assert charged(6.0) == pytest.approx(5.0)
    for _ in range(50):
        speculation.pass_over(TokenTree(0))
    assert charged(300.0) == pytest.approx(5.0)
    assert charged(6.0) == pytest.approx(6.0)
    speculation.pass_over(TokenTree(0))
    # A prompt is absorbed as it is prefilled, so the first draft of a text has nothing to catch up with.
    speculation.start_request()
    assert charged(7.0) == pytest.approx(6.0)
    assert cost.samples == {1: [4.0, 6.0, 6.0, 7.0]}


def test_where_only_chains_can_be_verified_the_whole_tree_still_teaches() -> None:
    speculation = Speculation(Budget(CURVE))
    tree = TokenTree(0)
    tree.add(0, RIGHT, 0.98)
    tree.add(0, 2, 0.98)
    chosen = speculation.choose(tree, 0.0, as_chain=True)
    assert chosen.is_chain
    speculation.learn([RIGHT])
    record = speculation.calibration.record["greedy"]["1"]
    assert (sum(record["tried"][0]), sum(record["accepted"][0])) == (2, 1)
