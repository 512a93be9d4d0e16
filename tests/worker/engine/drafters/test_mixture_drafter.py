"""Several drafters' candidates in one tree, merged by path."""

import random
from typing import Any

import mlx.core as mx
import pytest
from scripted_drafters import ScriptedDrafter, add_chain

from bench.families import tiny_model
from worker.engine.budget import Budget, CostCurve
from worker.engine.drafters.mixture import MixtureDrafter, members_of
from worker.engine.drafters.protocol import Asked, DraftContext, DraftLimits
from worker.engine.speculation import Speculation
from worker.engine.tree import SILENT, TokenTree
from worker.engine.verify.taps import Taps

WIDE = DraftLimits(nodes=32, depth=8)


def tree_of(paths: dict[tuple[int, ...], float], pending: int = 7) -> TokenTree:
    """A tree with the confidence of the last token of each path."""
    tree = TokenTree(pending)
    for path, confidence in paths.items():
        node = 0
        for token in path[:-1]:
            found = tree.child(node, token)
            assert found is not None
            node = found
        tree.add(node, path[-1], confidence)
    return tree


def paths_of(tree: TokenTree) -> dict[tuple[int, ...], tuple[float, int]]:
    """Path -> confidence and sources."""
    return {
        tuple(tree.tokens[one] for one in tree.path(node)[1:]): (tree.confidences[node], tree.sources[node])
        for node in range(1, len(tree))
    }


def test_the_same_path_is_one_node_with_both_sources() -> None:
    one = tree_of({(1,): 0.9, (1, 2): 0.5, (3,): 0.1})
    other = tree_of({(1,): 0.4, (1, 2): 0.8, (1, 4): 0.2})
    whole = TokenTree(7)
    whole.merge({0b01: one, 0b10: other})
    assert paths_of(whole) == {
        (1,): (0.9, 0b11),
        (1, 2): (0.8, 0b11),
        (3,): (0.1, 0b01 | 0b10 << SILENT),
        (1, 4): (0.2, 0b10 | 0b01 << SILENT),
    }
    alone = TokenTree(7)
    alone.merge({0b10: other})
    assert paths_of(alone) == {(1,): (0.4, 0b10), (1, 2): (0.8, 0b10), (1, 4): (0.2, 0b10)}


def test_a_boastful_drafter_takes_no_room_from_one_that_is_right() -> None:
    """One is sure of seven tokens and always wrong, the other doubts a token and is right: its node is verified."""
    boastful, honest = TokenTree(7), TokenTree(7)
    add_chain(boastful, range(1, 8), DraftLimits(8, 8), confidence=0.97)
    honest.add(0, 9, 0.45)
    speculation = Speculation(Budget(CostCurve((1, 2, 8), (10.0, 14.0, 30.0))))
    for _ in range(30):
        whole = TokenTree(7)
        whole.merge({0b01: boastful, 0b10: honest})
        assert len(whole) == 9
        chosen = speculation.choose(whole, 0.0)
        speculation.learn([9])
    assert chosen.tokens == [7, 9]


@pytest.mark.parametrize("fixed", [None, 16])
def test_room_goes_to_who_is_right_and_not_to_who_is_sure(fixed: int | None) -> None:
    """One says 0.99 and is right with 0.2, the other says 0.85 and is right with 0.9; each would fill the room."""
    rng, depth = random.Random(3), 15
    curve = CostCurve((1, 16), (10.0, 12.0))
    speculation = Speculation(Budget(curve, fixed), on_device=[False, False])
    honest_nodes, promised = [], []
    for number in range(400):
        if number % 40 == 0:
            speculation.start_request()
        assert speculation.drafts()
        text = [rng.randrange(100, 200) for _ in range(depth + 1)]
        for bit, confidence, acceptance in ((0b01, 0.99, 0.2), (0b10, 0.85, 0.9)):
            # A wrong guess is a token that no text has.
            guesses = [token if rng.random() < acceptance else bit for token in text]
            speculation.asked.drafts[bit] = TokenTree(7)
            add_chain(speculation.asked.drafts[bit], guesses, DraftLimits(16, depth), confidence)
        whole = TokenTree(7)
        whole.merge(speculation.asked.drafts)
        chosen = speculation.choose(whole, 0.0)
        assert len(chosen) <= 16
        honest_nodes.append(sum(source & 0b10 > 0 for source in chosen.sources))
        promised.append(sum(chosen.values))
        run, node = 0, 0
        while (child := chosen.child(node, text[run])) is not None:
            run, node = run + 1, child
        speculation.learn(text[: run + 1])
    # A chain of fifteen that is right with 0.9 gives (1 - 0.9^16) / 0.1 tokens, the other one 1.25.
    assert sum(promised[200:]) / 200 == pytest.approx(8.1, abs=0.8)
    assert sum(honest_nodes[200:]) / 200 > 11


class Layered(ScriptedDrafter):
    """Keeps what it was given to absorb."""

    def __init__(self, name: str, count: int, taps: Taps | None) -> None:
        super().__init__(lambda emitted, tree, limits: None)
        self.name, self.count, self.taps = name, count, taps
        self.absorbed: list[Any] = []
        self.context: DraftContext | None = None

    def new_cache(self) -> list[Any]:
        return [f"{self.name}{number}" for number in range(self.count)]

    def absorb(self, tokens: Any, hidden: Any, layers: Any) -> None:
        self.absorbed.append((list(tokens), None if hidden is None else hidden.tolist(), list(layers)))

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        self.context = context
        add_chain(tree, [self.count, 9], limits)


def test_everyone_gets_its_own_layers_and_states() -> None:
    model = tiny_model("llama")
    drafters = [
        Layered("a", 2, Taps(model, blocks=(0,))),
        Layered("b", 0, None),
        Layered("c", 1, Taps(model, blocks=(1, 2))),
    ]
    mixture = MixtureDrafter(drafters)
    assert mixture.name == "a+b+c"
    assert mixture.new_cache() == ["a0", "a1", "c0"]
    assert mixture.taps is not None
    assert mixture.taps.states == 3
    mixture.absorb([4, 5], mx.array([[1, 2, 3], [4, 5, 6]]), ["x", "y", "z"])
    assert drafters[0].absorbed == [([4, 5], [[1], [4]], ["x", "y"])]
    assert drafters[1].absorbed == [([4, 5], None, [])]
    assert drafters[2].absorbed == [([4, 5], [[2, 3], [5, 6]], ["z"])]
    mixture.prefill([1, 7])
    tree = TokenTree(7)
    mixture.draft(tree, WIDE, DraftContext(position=1, layers=["x", "y", "z"], target_layers=["t"]))
    assert set(paths_of(tree)) == {(2,), (2, 9), (0,), (0, 9), (1,), (1, 9)}
    assert drafters[2].context == DraftContext(position=1, layers=["z"], target_layers=["t"])
    mixture.commit([3])
    assert all(drafter.tokens == [1, 7, 3] for drafter in drafters)


def test_only_those_draft_that_are_asked() -> None:
    drafters = [Layered("a", 1, None), Layered("b", 0, None), Layered("c", 1, None)]
    mixture = MixtureDrafter(drafters)
    mixture.prefill([1, 7])
    asked, tree = Asked(0b101), TokenTree(7)
    mixture.draft(tree, WIDE, DraftContext(position=1, layers=["x", "y"], asked=asked))
    assert [drafter.context is not None for drafter in drafters] == [True, False, True]
    # The first and the last both say 1, then 9.
    assert paths_of(tree) == {(1,): (0.9, 0b101), (1, 9): (0.9, 0b101)}
    assert {bit: draft.tokens for bit, draft in asked.drafts.items()} == {0b001: [7, 1, 9], 0b100: [7, 1, 9]}
    assert set(asked.spent_ms) == {0b001, 0b100}
    assert all(milliseconds >= 0 for milliseconds in asked.spent_ms.values())


def test_each_drafts_within_a_depth_of_its_own() -> None:
    drafters = [Layered("a", 1, None), Layered("b", 2, None)]
    mixture = MixtureDrafter(drafters)
    mixture.prefill([7])
    asked = Asked(depths={0b10: 1})
    mixture.draft(TokenTree(7), WIDE, DraftContext(layers=["x", "y", "z"], asked=asked))
    assert {bit: draft.max_depth for bit, draft in asked.drafts.items()} == {0b01: 2, 0b10: 1}
    assert asked.within(DraftLimits(5, 3), 0b01) == DraftLimits(5, 3)
    assert asked.within(DraftLimits(5, 3), 0b10) == DraftLimits(5, 1)
    assert Asked(depths={0b10: 4}).within(DraftLimits(5, 3), 0b10) == DraftLimits(5, 3)


def test_a_drafter_alone_is_its_only_member() -> None:
    alone = Layered("a", 1, None)
    assert members_of(alone) == [alone]
    mixture = MixtureDrafter([alone, Layered("b", 0, None)])
    assert members_of(mixture) == mixture.drafters


def test_a_mixture_without_taps_reads_no_states() -> None:
    mixture = MixtureDrafter([Layered("a", 1, None), Layered("b", 1, None)])
    assert mixture.taps is None
    mixture.absorb([1], None, ["x", "y"])


def test_one_drafter_is_no_mixture() -> None:
    with pytest.raises(AssertionError):
        MixtureDrafter([Layered("a", 1, None)])
