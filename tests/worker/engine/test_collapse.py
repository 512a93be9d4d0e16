"""When acceptance has collapsed, by hand: windows of passes as (drafted, accepted)."""

import pytest
from engine_maker import EngineFor
from scripted_drafters import ScriptedDrafter, add_chain
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_requests import PROMPT_IDS, ids, request

from worker.engine.collapse import AcceptanceWindow
from worker.engine.completion import Completion, EndRules
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tally import Tally
from worker.engine.tree import TokenTree


def first_collapse(passes: list[tuple[int, int]]) -> int | None:
    """Number of the pass, from 1."""
    window = AcceptanceWindow()
    for number, (drafted, accepted) in enumerate(passes, 1):
        window.count(drafted, accepted)
        if window.collapsed:
            return number
    return None


@pytest.mark.parametrize(
    ("passes", "collapse"),
    [
        # 63 drafted tokens are too few to tell.
        ([(7, 0)] * 9, None),
        ([(7, 0)] * 10, 10),
        ([(64, 0)], 1),
        # 6 of 64 are 9.4 %, 7 are 10.9 %; 7 of 70 are 10 % and not less.
        ([(64, 6)], 1),
        ([(64, 7)], None),
        ([(70, 7)], None),
        # Eight passes fill the window: after seven wrong ones 8 of 64 are 12.5 %, after eight none.
        ([(8, 8)] * 8 + [(8, 0)] * 7, None),
        ([(8, 8)] * 8 + [(8, 0)] * 8, 16),
        # 60 drafted tokens after a pass do not push it out, 64 do.
        ([(10, 9), (60, 0)], None),
        ([(10, 9), (60, 0), (4, 0)], 3),
        # Passes without a draft say nothing and push nothing out.
        ([(8, 8)] * 8 + [(0, 0)] * 100, None),
        ([(8, 0)] * 7 + [(0, 0)] * 100 + [(8, 0)], 108),
    ],
)
def test_the_collapse_comes_with_the_pass_that_shows_it(passes: list[tuple[int, int]], collapse: int | None) -> None:
    assert first_collapse(passes) == collapse


def wrong_tree(nodes: int) -> TokenTree:
    tree = TokenTree(1)
    for token in range(nodes):
        tree.add(0, 10 + token, 0.5)
    return tree


def test_the_tally_says_how_many_tokens_were_there_and_keeps_the_first_time() -> None:
    tally = Tally()
    for length in (3, 5):
        completion = Completion(EndRules(100), lambda tokens: "x" * len(tokens))
        tally.completions.append(completion)
        for _ in range(length):
            completion.push(7)
    tally.count_pass(wrong_tree(63), accepted=0)
    assert tally.stats().acceptance_collapsed_at is None
    tally.count_pass(wrong_tree(1), accepted=0)
    tally.completions[-1].push(7)
    tally.count_pass(wrong_tree(16), accepted=0)
    assert tally.stats().acceptance_collapsed_at == 8


@pytest.mark.parametrize(("right_until", "collapsed_at"), [(0, 7), (72, 79), (1000, None)])
def test_a_generation_tells_where_its_drafter_lost_its_way(
    engine_for: EngineFor, right_until: int, collapsed_at: int | None
) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz" * 5)

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        # Eight drafted tokens a pass: all right, which makes nine tokens, or all wrong, which makes one.
        add_chain(tree, wanted[emitted : emitted + 8] if emitted < right_until else ids("########"), limits)

    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(script))
    result, stats = engine.generate(request(max_tokens=120))
    assert result.token_ids == wanted[:120]
    assert stats.acceptance_collapsed_at == collapsed_at
