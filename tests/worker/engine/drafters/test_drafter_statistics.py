"""What is counted of each drafter's guesses, recounted from the trees that were verified and the tokens that came."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from drafter_cases import ALL
from engine_maker import EngineFor
from family_exactness import Case
from hinted_drafter import HintedDrafter
from toy_tokenizer import text_of

from api.schemas import GenerationResult, JobStats
from worker.engine.engine import Engine
from worker.engine.tree import TokenTree

TOKENS = 22
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 3}
ASKED = {
    "greedy": Case("the-cat+sat,the-cat+ran,a~cat", TOKENS),
    "sampled": Case("the-cat+sat,the-cat+ran,a~cat", TOKENS, SAMPLED),
}


@pytest.fixture(scope="module", params=ALL)
def drafter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def plain(drafter: str, name: str) -> list[int]:
    return ASKED[name].plain(ALL[drafter]().target)


@dataclass
class Recount:
    """Passes as they were seen from outside: the tree that was verified, None for a plain one, and what it emitted."""

    passes: list[tuple[TokenTree | None, list[int]]] = field(default_factory=list)

    @property
    def emitted(self) -> list[int]:
        return [token for _, tokens in self.passes for token in tokens]

    @property
    def drafted(self) -> int:
        return sum(len(tree) - 1 for tree, _ in self.passes if tree is not None)

    def accepted(self, kept: int) -> int:
        """Guesses that came true, among the first `kept` tokens of the text."""
        return sum(1 for place in self.places_of_accepted() if place < kept)

    def places_of_accepted(self) -> list[int]:
        """In the text, stops and what is behind them included."""
        places, start = [], 0
        for tree, tokens in self.passes:
            node: int | None = 0
            for place, token in enumerate(tokens):
                node = None if tree is None or node is None else tree.child(node, token)
                if node is not None:
                    places.append(start + place)
            start += len(tokens)
        return places


class Recorded(HintedDrafter):
    """Notes what each pass emits, beside the tree that `Engine` had verified before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.recount = Recount()
        self.verified: TokenTree | None = None

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self.recount.passes.append((self.verified, list(tokens)))
        self.verified = None


def answer(engine_for: EngineFor, drafter: str, name: str, **values: Any) -> tuple[GenerationResult, JobStats, Recount]:
    case, text = ALL[drafter](), plain(drafter, name)
    recorded = Recorded(case.make(), {False: text, True: text})
    engine: Engine = engine_for(case.target, nodes=8, drafter=recorded)
    forward = engine.verifier.forward

    def noted(tree: TokenTree, cache: Any) -> Any:
        recorded.verified = tree
        return forward(tree, cache)

    engine.verifier.forward = noted  # type: ignore[method-assign]
    request = ASKED[name].request.model_dump(exclude_unset=True) | values
    result, stats = engine.generate(ASKED[name].request.model_validate(request))
    return result, stats, recorded.recount


def assert_honest(result: GenerationResult, stats: JobStats, recount: Recount) -> None:
    kept = len(result.token_ids)
    assert recount.emitted[:kept] == result.token_ids
    accepted = recount.accepted(kept)
    assert (stats.passes, stats.drafted_tokens, stats.accepted_tokens) == (
        len(recount.passes),
        recount.drafted,
        accepted,
    )
    assert stats.acceptance == pytest.approx(accepted / recount.drafted)
    assert stats.tokens_per_pass == pytest.approx(kept / len(recount.passes))
    assert sum(stats.budgets.values()) == len(recount.passes)
    assert stats.forced_tokens == 0


@pytest.mark.parametrize("name", ASKED)
def test_the_counts_are_those_of_the_verified_trees(engine_for: EngineFor, drafter: str, name: str) -> None:
    result, stats, recount = answer(engine_for, drafter, name)
    assert result.token_ids == plain(drafter, name)
    assert_honest(result, stats, recount)
    assert 5 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.tokens_per_pass is not None
    assert stats.tokens_per_pass > 1.3


@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_counted_past_the_cap(engine_for: EngineFor, drafter: str, name: str) -> None:
    for cap in (1, 9):
        result, stats, recount = answer(engine_for, drafter, name, max_tokens=cap)
        assert result.token_ids == plain(drafter, name)[:cap]
        if cap > 1:
            assert_honest(result, stats, recount)
            assert len(recount.emitted) == cap
        else:
            assert (stats.passes, stats.drafted_tokens, stats.acceptance) == (1, 0, None)


@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_counted_past_a_stop_token(engine_for: EngineFor, drafter: str, name: str) -> None:
    text = plain(drafter, name)
    for place in first_times(text, 1)[:2]:
        result, stats, recount = answer(engine_for, drafter, name, stop_token_ids=[text[place]])
        assert result.token_ids == text[:place]
        assert result.finish_reason == "stop"
        assert_honest(result, stats, recount)
        # Neither the stop token nor what its pass guessed behind it.
        assert recount.emitted == text[: place + 1]


@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_counted_past_a_stop_string(engine_for: EngineFor, drafter: str, name: str) -> None:
    text = plain(drafter, name)
    taken_back = 0
    for place in first_times(text, 2):
        result, stats, recount = answer(engine_for, drafter, name, stop=[text_of(text[place : place + 2])])
        assert result.token_ids == text[:place]
        assert result.finish_reason == "stop"
        assert_honest(result, stats, recount)
        taken_back += sum(at >= place for at in recount.places_of_accepted())
    # Guesses were right behind the cut, and do not count.
    assert taken_back > 0


def first_times(text: Sequence[int], length: int) -> list[int]:
    """Some places beyond the first tokens where `length` tokens, all of them printable, stand for the first time."""
    printable = [place for place in range(8, len(text) - 3) if min(text[place : place + length]) > 2]
    found = [place for place in printable if place == first_of(text, text[place : place + length])]
    return found[:3]


def first_of(text: Sequence[int], part: Sequence[int]) -> int:
    return next(place for place in range(len(text)) if text[place : place + len(part)] == part)
