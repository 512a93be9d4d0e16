"""How deep a drafter drafts: against the best fixed depth, on synthetic drafters whose acceptance is known."""

import random
from dataclasses import dataclass

import pytest

from worker.engine.budget import Budget, CostCurve
from worker.engine.draft_cost import DraftCost
from worker.engine.draft_depth import DEEPER_EVERY, DraftDepth
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.speculation import Speculation
from worker.engine.tree import TokenTree

LEVELS = 4
# Beyond one node a pass costs hardly more, or twice as much for 8 nodes.
FLAT, STEEP = CostCurve((1, 8), (10.0, 10.0)), CostCurve((1, 2, 8), (10.0, 14.0, 20.0))


@dataclass(frozen=True)
class World:
    """Guesses are right with `acceptance` when the one before is; milliseconds of a draft: absorb_ms, and level_ms a
    level."""

    acceptance: float
    level_ms: float = 2.0
    absorb_ms: float = 0.0
    curve: CostCurve = FLAT

    def draft_ms(self, passes: int) -> float:
        return self.absorb_ms + self.level_ms * passes

    def speedup(self, depth: int) -> float:
        """Of a fixed depth, for the best part of its chain."""
        tokens = [sum(self.acceptance**level for level in range(size)) for size in range(depth + 2)]
        times = [self.curve.cost(size) + self.draft_ms(depth) for size in range(depth + 2)]
        return max(tokens[size] / times[size] for size in range(1, depth + 2)) * self.curve.cost(1)

    @property
    def best(self) -> int:
        return max(range(1, LEVELS + 1), key=self.speedup)


def decode(speculation: Speculation, world: World, tokens: int, seed: int = 0) -> tuple[float, list[int]]:
    """Simulate a text; returns its speedup over plain decoding, and the depths of its drafts."""
    rng, emitted_tokens, milliseconds = random.Random(seed), 0, 0.0
    depths: list[int] = []
    speculation.start_request()
    while emitted_tokens < tokens:
        draft, run = TokenTree(0), 0
        if speculation.drafts():
            asked = speculation.asked
            depth = asked.within(DraftLimits(nodes=8, depth=LEVELS), asked.bits).depth
            for node in range(depth):
                draft.add(node, 2 + node, 0.65)
            while run < depth and rng.random() < world.acceptance:
                run += 1
            draft.passes = depth
            depths.append(depth)
            milliseconds += world.draft_ms(depth)
            chosen = speculation.choose(draft, world.draft_ms(depth))
        else:
            chosen = speculation.pass_over(draft)
        accepted = min(run, len(chosen) - 1)
        emitted = [*draft.tokens[1 : accepted + 1], draft.tokens[accepted + 1] if accepted < run else 1]
        milliseconds += world.curve.cost(len(chosen))
        emitted_tokens += len(emitted)
        speculation.learn(emitted)
    return emitted_tokens / milliseconds * world.curve.cost(1), depths


def economy(world: World) -> Speculation:
    return Speculation(Budget(world.curve), on_device=[True], levels=[LEVELS])


@pytest.mark.parametrize(
    ("world", "depth"),
    [
        (World(0.4), 1),  # 1.4 / 1.2 = 1.17, where four levels give 1.65 / 1.8 = 0.92
        (World(0.6), 2),
        (World(0.9), 4),
        (World(0.5, absorb_ms=6.0), 2),
        (World(0.8, level_ms=4.0), 2),
        (World(0.8, level_ms=1.0, curve=STEEP), 4),
        (World(0.99, level_ms=0.1, absorb_ms=0.5), 4),
    ],
)
def test_the_depth_is_the_one_of_most_tokens_per_millisecond(world: World, depth: int) -> None:
    assert world.best == depth
    speculation = economy(world)
    decode(speculation, world, 600)
    speedup, depths = decode(speculation, world, 4000, seed=1)
    assert sum(one == depth for one in depths) > 0.8 * len(depths)
    assert speedup > 0.96 * world.speedup(depth)
    assert speedup > 0.98 * world.speedup(LEVELS)


def test_a_drafter_that_pays_only_when_it_drafts_less_deep_is_not_refused() -> None:
    world = World(0.4)
    assert world.speedup(LEVELS) < 1
    speedup, depths = decode(economy(world), world, 1000)
    assert speedup > 1.1
    assert set(depths[-10:]) <= {1, 2}


def test_it_drafts_deeper_again_when_the_text_suits_it() -> None:
    speculation = economy(World(0.3))
    decode(speculation, World(0.3), 2000)
    _, depths = decode(speculation, World(0.95), 400, seed=1)
    assert depths.index(LEVELS) < 3 * DEEPER_EVERY
    assert sum(depth == LEVELS for depth in depths[-20:]) > 15


def test_a_depth_that_was_never_tried_is_not_guessed() -> None:
    depth = DraftDepth(5)
    assert depth.best == 5
    # One level: 1.5 tokens in 12 ms. A second one would have to bring 0.25 more in 2 ms to be as good.
    depth.record([(1.0, 10.0), (1.5, 12.0), (1.7, 14.0)])
    assert depth.best == 1
    depth.record([(1.0, 10.0), (1.5, 12.0), (1.9, 14.0)])
    # 0.3 tokens in 2 ms on average.
    assert depth.best == 2


def test_every_so_many_drafts_may_be_twice_as_deep() -> None:
    depth = DraftDepth(5)
    promised = [(1.0, 10.0), (1.5, 11.0), (2.0, 12.0), (2.5, 13.0), (2.5, 14.0), (2.5, 15.0)]
    asked = []
    for _ in range(3 * DEEPER_EVERY):
        asked.append(depth.next())
        depth.record(promised[: asked[-1] + 1])
    assert asked == [5, *[3] * (DEEPER_EVERY - 2), 5] + ([3] * (DEEPER_EVERY - 1) + [5]) * 2


def test_what_a_level_adds_is_forgotten_as_time_goes_by() -> None:
    depth = DraftDepth(2)
    for _ in range(200):
        depth.record([(1.0, 10.0), (1.9, 11.0), (2.7, 12.0)])
    assert depth.best == 2
    for _ in range(150):
        depth.record([(1.0, 10.0), (1.1, 11.0)])
    for _ in range(3):
        depth.record([(1.0, 10.0), (1.1, 11.0), (1.12, 12.0)])
    assert depth.best == 1


def test_where_only_chains_can_be_verified_the_levels_are_those_of_a_path() -> None:
    speculation = Speculation(Budget(FLAT), costs={1: DraftCost({2: [2.0]})}, levels=[2])
    assert speculation.drafts()
    tree = TokenTree(0)
    first = tree.add(0, 1, 0.65)
    tree.add(first, 2, 0.05)
    # As siblings these would be worth more than the second level is.
    tree.add(0, 3, 0.2)
    tree.passes = 2
    assert speculation.choose(tree, 2.0, as_chain=True).tokens == [0, 1, 2]
    speculation.learn([1, 2])
    depth = speculation.panel.members[0].depth
    assert depth is not None
    # 1.65 tokens in 11 ms, or 0.03 more in a millisecond more.
    assert depth.best == 1


@pytest.mark.parametrize("rank_of_second", [0, 1])
def test_promises_by_hand(rank_of_second: int) -> None:
    tree = TokenTree(0)
    one = tree.add(0, 1, 0.8)
    tree.add(one, 2, 0.5)
    tree.add(0, 3, 0.1)
    # Values 1, 0.8, 0.4 and 0.1; two nodes cost 14 ms and three 15.
    promised = Budget(STEEP).promises(tree, [0, rank_of_second, 2, 2], [0.5, 1.0, 2.0])
    shallow = {0: (1.8, 14.5), 1: (1.0, 10.5)}[rank_of_second]
    assert promised == [pytest.approx(shallow), pytest.approx((1.8, 15.0)), pytest.approx((2.2, 17.0))]
