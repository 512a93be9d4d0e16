"""An engine with each drafter: plain decoding's text up to the end of a context, and after whatever was cancelled."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from drafter_cases import ALL
from engine_maker import EngineFor
from family_exactness import Case
from hinted_drafter import HintedDrafter

from api.schemas import GenerationResult
from bench.families import tiny_model, vocabulary
from worker.engine.drafters.draft_model import DraftModelDrafter
from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.mixture import MixtureDrafter
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.tree import TokenTree

TOKENS = 20
ASKED = {
    "greedy": Case("the-cat+sat,the-cat+ran,a~cat", TOKENS),
    "sampled": Case("0.5-1.0-0.5-1.5", TOKENS, {"temperature": 0.8, "top_p": 0.95, "seed": 3}),
    # Begins as the first one does.
    "forked": Case("the-cat+sat,the-dog", TOKENS, {"temperature": 0.9, "top_k": 30, "seed": 4}),
}


@pytest.fixture(scope="module", params=ALL)
def drafter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def plain(drafter: str, name: str) -> list[int]:
    return ASKED[name].plain(ALL[drafter]().target)


class Desk:
    """An engine with one drafter, which gets hints."""

    def __init__(self, engine_for: EngineFor, drafter: str, **options: Any) -> None:
        case = ALL[drafter]()
        self._name, self._hinted = drafter, HintedDrafter(case.make(), {})
        self._engine = engine_for(case.target, nodes=8, drafter=self._hinted, **options)
        self.accepted = self.drafted = 0

    def ask(self, name: str, stop: Callable[[int], bool] = lambda _: False, **values: Any) -> GenerationResult:
        """stop(tokens): whether to cancel, with so many completion tokens."""
        text = plain(self._name, name)
        self._hinted.texts = {False: text, True: text}
        counts = [0]
        result, stats = self._engine.generate(
            ASKED[name].request.model_copy(update=values),
            on_tokens=lambda _, count: counts.append(count),
            should_stop=lambda: stop(counts[-1]),
        )
        self.accepted += stats.accepted_tokens
        self.drafted += stats.drafted_tokens
        return result


def test_requests_back_to_back_get_their_own_texts(engine_for: EngineFor, drafter: str) -> None:
    desk = Desk(engine_for, drafter)
    for name in ("greedy", "sampled", "forked", "greedy"):
        assert desk.ask(name).token_ids == plain(drafter, name), name
    assert desk.accepted > 24
    assert desk.drafted - desk.accepted > 10


def test_what_was_cancelled_leaves_no_trace(engine_for: EngineFor, drafter: str) -> None:
    desk = Desk(engine_for, drafter, prefill_chunk=6)
    asks = iter(range(100))
    prefilling = desk.ask("greedy", lambda _: next(asks) == 2)
    assert (prefilling.token_ids, prefilling.finish_reason) == ([], "cancelled")
    assert desk.ask("greedy").token_ids == plain(drafter, "greedy")
    for after, name, following in ((3, "sampled", "forked"), (9, "greedy", "sampled")):
        decoding = desk.ask(name, lambda tokens: tokens >= after)  # noqa: B023
        assert decoding.finish_reason == "cancelled"
        assert after <= len(decoding.token_ids) < TOKENS
        assert decoding.token_ids == plain(drafter, name)[: len(decoding.token_ids)]
        assert desk.ask(following).token_ids == plain(drafter, following)
    assert desk.accepted > 20


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_a_text_may_fill_the_targets_context(engine_for: EngineFor, drafter: str, name: str) -> None:
    desk = Desk(engine_for, drafter, context=len(ASKED[name].prompt) + TOKENS)
    result = desk.ask(name, max_tokens=1000)
    assert result.token_ids == plain(drafter, name)
    assert result.finish_reason == "length"
    assert desk.accepted > 5


class Watched(DraftModelDrafter):
    """`drafts`: the position and the depth of each."""

    drafts: list[tuple[int, int]]

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        super().draft(tree, limits, context)
        self.drafts.append((context.position, tree.max_depth))


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mixture"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_5"])
def test_a_text_may_go_on_past_the_draft_models_context(engine_for: EngineFor, family: str, mixed: bool) -> None:
    target = tiny_model("llama")
    chain = Expansion(depth=4, beam=1, children=1, min_value=1e-12)
    for name in ("greedy", "sampled"):
        case, context = ASKED[name], len(ASKED[name].prompt) + 10
        text = case.plain(target)
        model = Watched(tiny_model(family, seed=9), "tree", vocabulary(family), context, chain)
        model.drafts = []
        hinted = HintedDrafter(MixtureDrafter([SuffixDrafter(), model]) if mixed else model, {False: text, True: text})
        engine = engine_for(target, nodes=8, drafter=hinted)
        result, stats = engine.generate(case.request)
        assert result.token_ids == text
        assert stats.accepted_tokens > 5
        # It was asked where its window was full, too, and had nothing to say.
        assert max(position + depth for position, depth in model.drafts if depth) == context
        assert max(position for position, _ in model.drafts) > context
