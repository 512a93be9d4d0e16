"""The drafters of a mixture, each with a gate of its own, on synthetic drafters whose acceptance is known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from worker.engine.budget import Budget, CostCurve
from worker.engine.draft_cost import DraftCost
from worker.engine.drafters.protocol import Asked
from worker.engine.panel import Panel
from worker.engine.speculation import Speculation
from worker.engine.tree import TokenTree

# A pass over 2 nodes costs half as much again, one over 8 nodes twice as much.
CURVE = CostCurve((1, 2, 8), (10.0, 15.0, 20.0))
VOCABULARY = 1000


@dataclass
class Synthetic:
    """Guesses a chain of `depth` tokens, each right with `acceptance` when the one before it is; takes `draft_ms`.

    copies: of which drafter it guesses the same.
    """

    acceptance: float
    draft_ms: float
    depth: int = 7
    copies: int | None = None


@dataclass
class Outcome:
    tokens: int = 0
    milliseconds: float = 0.0
    rounds: int = 0
    drafted: dict[int, int] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        return self.tokens / self.milliseconds * CURVE.cost(1)

    def share(self, drafter: int) -> float:
        """Of the rounds, in which a drafter was run."""
        return self.drafted.get(drafter, 0) / self.rounds


def decode(speculation: Speculation, drafters: Sequence[Synthetic], tokens: int, seed: int = 0) -> Outcome:
    rng, done = random.Random(seed), Outcome()
    speculation.start_request()
    while done.tokens < tokens:
        done.rounds += 1
        text = [rng.randrange(VOCABULARY) for _ in range(10)]
        guesses = [guess(drafter, text, rng) for drafter in drafters]
        draft = TokenTree(0)
        if speculation.drafts():
            asked = speculation.asked
            for number, drafter in enumerate(drafters):
                if asked.bits >> number & 1:
                    done.drafted[number] = done.drafted.get(number, 0) + 1
                    asked.drafts[1 << number] = guesses[number if drafter.copies is None else drafter.copies]
                    asked.spent_ms[1 << number] = drafter.draft_ms
            draft.merge(asked.drafts)
            spent = sum(asked.spent_ms.values())
            done.milliseconds += spent
            chosen = speculation.choose(draft, spent)
        else:
            chosen = speculation.pass_over(draft)
        emitted, node = [], 0
        for token in text:
            emitted.append(token)
            child = chosen.child(node, token)
            if child is None:
                break
            node = child
        done.milliseconds += CURVE.cost(len(chosen))
        done.tokens += len(emitted)
        speculation.learn(emitted)
    return done


def guess(drafter: Synthetic, text: Sequence[int], rng: random.Random) -> TokenTree:
    tree, node = TokenTree(0), 0
    for token in text[: drafter.depth]:
        right = rng.random() < drafter.acceptance
        node = tree.add(node, token if right else rng.randrange(VOCABULARY), 0.65)
    return tree


def economy(drafters: Sequence[Synthetic]) -> Speculation:
    return Speculation(Budget(CURVE), on_device=[False] * len(drafters))


def settled(drafters: Sequence[Synthetic], tokens: int = 3000) -> Outcome:
    """After a while."""
    speculation = economy(drafters)
    decode(speculation, drafters, 600)
    return decode(speculation, drafters, tokens, seed=1)


CHEAP_AND_GOOD, DEAR_AND_USELESS = Synthetic(0.8, 0.1), Synthetic(0.05, 15.0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_dear_drafter_that_does_not_pay_takes_nothing_from_a_cheap_one_that_does(order: tuple[int, int]) -> None:
    drafters = [(CHEAP_AND_GOOD, DEAR_AND_USELESS)[place] for place in order]
    alone = settled([CHEAP_AND_GOOD])
    together = settled(drafters)
    assert alone.speedup > 1.7
    assert together.speedup > 0.95 * alone.speedup
    assert together.share(order.index(0)) == 1
    assert together.share(order.index(1)) < 0.04


def test_a_dear_drafter_pays_where_a_cheap_one_is_of_no_use() -> None:
    dear = Synthetic(0.9, 3.0)
    together = settled([Synthetic(0.02, 0.1), dear])
    assert together.share(1) == 1
    assert together.speedup > 0.95 * settled([dear]).speedup > 1.9


def test_a_dear_drafter_that_adds_little_to_a_cheap_one_is_not_run() -> None:
    """By itself it would pay, beside a free one that is as good it does not."""
    dear = Synthetic(0.8, 8.0)
    assert settled([dear]).speedup > 1.15
    together = settled([CHEAP_AND_GOOD, dear])
    assert together.share(1) < 0.05
    assert together.speedup > 0.95 * settled([CHEAP_AND_GOOD]).speedup


def test_of_two_drafters_that_guess_the_same_one_is_run_at_a_time() -> None:
    drafters = [Synthetic(0.85, 4.0), Synthetic(0.85, 4.0, copies=0)]
    together = settled(drafters)
    assert 0.95 < together.share(0) + together.share(1) < 1.1
    assert together.speedup > 0.95 * settled(drafters[:1]).speedup


def test_a_drafter_takes_the_place_of_a_dearer_one_that_is_hardly_better() -> None:
    """Beside it the cheaper one adds nothing, so that it is not enough to try whether both are better than one."""
    drafters = [Synthetic(0.3, 0.1), Synthetic(0.85, 3.0), Synthetic(0.9, 10.0)]
    together = settled(drafters)
    assert together.share(1) > 0.9
    assert together.share(2) < 0.1
    assert together.speedup > 0.95 * settled([drafters[1]]).speedup


def test_drafters_that_complement_one_another_are_both_run() -> None:
    drafters = [Synthetic(0.6, 0.5), Synthetic(0.6, 0.5)]
    together = settled(drafters)
    assert min(together.share(number) for number in (0, 1)) > 0.95
    assert together.speedup > 1.05 * settled(drafters[:1]).speedup


def test_drafters_of_which_none_pays_are_left_alone() -> None:
    drafters = [Synthetic(0.1, 5.0), Synthetic(0.05, 15.0)]
    together = settled(drafters)
    assert max(together.share(number) for number in (0, 1)) < 0.04
    assert together.speedup > 0.93


def test_it_is_noticed_when_a_drafter_becomes_good() -> None:
    drafters = [Synthetic(0.5, 0.1), Synthetic(0.05, 5.0)]
    speculation = economy(drafters)
    decode(speculation, drafters, 3000)
    assert speculation.panel.members[1].gate.state == "closed"
    drafters[1].acceptance = 0.97
    outcome = decode(speculation, drafters, 1500, seed=2)
    assert outcome.share(1) > 0.5
    assert outcome.speedup > 1.8


def test_values_promise_what_rounds_give_whoever_was_asked() -> None:
    drafters = [Synthetic(0.7, 0.1, depth=2), Synthetic(0.5, 0.1, depth=2)]
    speculation = economy(drafters)
    decode(speculation, drafters, 6000)
    for bits in (0b01, 0b10, 0b11):
        rng, promised, given, rounds = random.Random(5), 0.0, 0, 3000
        for _ in range(rounds):
            speculation.start_request()
            text = [rng.randrange(VOCABULARY) for _ in range(3)]
            draft, node = TokenTree(0), 0
            trees = [guess(drafter, text, rng) for drafter in drafters]
            draft.merge({1 << number: tree for number, tree in enumerate(trees) if bits >> number & 1})
            speculation.calibration.appraise(draft)
            promised += sum(draft.values[1:])
            for token in text:
                child = draft.child(node, token)
                if child is None:
                    break
                node, given = child, given + 1
        assert promised / rounds == pytest.approx(given / rounds, abs=0.1), bits


# Costs.


def test_what_no_drafter_took_by_itself_is_for_those_that_keep_a_state() -> None:
    panel = Panel([False, True], {1: DraftCost({1: [1.0]}), 2: DraftCost({1: [1.0]})})
    draft = TokenTree(0)
    draft.merge({1: guess(Synthetic(1.0, 0.0, depth=1), [5], random.Random(0)), 2: TokenTree(0)})
    for _ in range(2):  # the first one compiles
        panel.charge(Asked(0b11, spent_ms={1: 0.5, 2: 3.0}), draft, 10.0, beside_pass=False)
    assert panel.costs[1].samples == {1: [1.0, 0.5]}
    assert panel.costs[2].samples == {1: [1.0, 9.5]}


def test_a_drafter_that_was_not_asked_before_has_more_to_absorb_and_teaches_nothing() -> None:
    panel = Panel([False, True], {2: DraftCost({1: [4.0]})})
    draft = TokenTree(0)
    panel.charge(Asked(0b11, spent_ms={1: 0.0, 2: 700.0}), draft, 700.0, beside_pass=False)
    assert panel.charge(Asked(0b01, spent_ms={1: 0.0}), draft, 0.0, beside_pass=False) == {1: 0.0}
    assert panel.charge(Asked(0b11, spent_ms={1: 0.0, 2: 90.0}), draft, 90.0, beside_pass=False)[2] == 4.0
    assert panel.charge(Asked(0b11, spent_ms={1: 0.0, 2: 6.0}), draft, 6.0, beside_pass=False)[2] == 5.0


def test_beside_a_pass_only_drafters_of_the_device_cost_anything() -> None:
    panel = Panel([False, True], {1: DraftCost({1: [3.0]}), 2: DraftCost({1: [4.0]})})
    assert panel.charge(Asked(0b11, spent_ms={1: 9.0, 2: 9.0}), TokenTree(0), 18.0, beside_pass=True) == {1: 0, 2: 4.0}


def test_a_text_is_kept_up_with_only_for_drafters_that_keep_a_state() -> None:
    panel = Panel([False, True], {})
    assert not panel.needs_state(Asked(0b01))
    assert panel.needs_state(Asked(0b10))
    assert panel.needs_state(Asked())
    # Whoever is alone is asked or not, as a whole.
    assert Panel([False], {}).needs_state(Asked())


def test_one_drafter_at_a_time_is_probed() -> None:
    panel = Panel([False] * 3, {})
    for member in panel.members:
        member.gate.admits()
        member.gate.record(1.0, 5.0)
        assert member.gate.state == "closed"
    asked: list[int] = []
    for _ in range(200):
        round_ = panel.ask()
        asked.append(round_.bits if round_ else 0)
        for member in panel.on_trial({} if round_ is None else {bit: 1.0 for bit in (1, 2, 4) if bit & round_.bits}):
            panel.record(member, 1.0, 5.0)
    assert set(asked) == {0, 1, 2, 4}
