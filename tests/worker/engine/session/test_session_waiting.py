"""The drafter beside the session: when it absorbs what was committed, and that it never misses any of it."""

from typing import Any

import mlx.core as mx
import pytest
from following_drafter import FollowingDrafter, absorbed
from mlx_lm.models.cache import ConcatenateKVCache
from remembering_model import RememberingModel

from worker.engine.session import PrefixTree, Session
from worker.engine.session.session import MAX_WAITING
from worker.engine.verify.verifier import Verifier

PROMPT = [10 + place % 70 for place in range(50)]


def session_of(drafter: FollowingDrafter, *kinds: str, budget: int = 0) -> Session:
    session = Session(Verifier(RememberingModel(*kinds or ["rows"]), "plain"), PrefixTree(budget))
    session.serve(drafter)
    return session


def decode(session: Session, tokens: list[int], hidden: bool = False) -> None:
    """A plain pass over each token; hidden: which leaves a row that tells the token's place."""
    for token in tokens:
        mx.eval(session._verifier.step(mx.array([token]), session.cache))
        session.extend([token], mx.array([[float(len(session.tokens))]]) if hidden else None)


def held(session: Session) -> list[int]:
    """What the drafter holds once it has caught up, which is what the session holds."""
    session.catch_up()
    assert absorbed(session.drafter_layers) == session.tokens
    return session.tokens


def test_tokens_wait_until_the_drafter_is_needed_and_come_at_once() -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter)
    session.begin([*PROMPT, 9], 2048)
    decode(session, [9, 5, 6], hidden=True)
    assert drafter.sizes == [50]
    session.catch_up()
    tokens, hidden = drafter.calls[-1]
    assert (tokens, hidden.tolist()) == ([9, 5, 6], [[50], [51], [52]])
    session.catch_up()
    decode(session, [7], hidden=True)
    session.catch_up()
    tokens, hidden = drafter.calls[-1]
    assert (tokens, hidden.tolist()) == ([7], [[53]])
    assert drafter.sizes == [50, 3, 1]


def test_every_chunk_of_a_prompt_is_absorbed_at_once() -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter)
    session.begin([*PROMPT, 9], 20)
    assert drafter.sizes == [20, 20, 10]
    # What waits goes before a chunk.
    decode(session, [9, 5])
    session.begin([*PROMPT, 9, 5, *PROMPT[:30], 1], 20)
    assert drafter.sizes == [20, 20, 10, 22, 10]
    assert held(session) == [*PROMPT, 9, 5, *PROMPT[:30]]


def test_no_more_wait_than_may() -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter)
    session.begin([*PROMPT, 9], 2048)
    most = 0
    for place in range(3 * MAX_WAITING):
        session.extend([place % 100])
        most = max(most, len(session.tokens) - sum(drafter.sizes))
    assert most == MAX_WAITING
    assert drafter.sizes == [50, MAX_WAITING + 1, MAX_WAITING + 1]
    session.extend([1] * 300)
    assert len(session.tokens) == sum(drafter.sizes)
    assert held(session)[-301:] == [(3 * MAX_WAITING - 1) % 100, *[1] * 300]


@pytest.mark.parametrize("kind", ["rows", "arrays"])
def test_what_the_next_prompt_takes_back_is_never_absorbed(kind: str) -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter, kind)
    session.begin([*PROMPT, 9], 2048)
    decode(session, [9, 5, 6, 7])
    session.settle(54)
    cached = session.begin([*PROMPT, 8], 2048)
    if kind == "rows":
        assert (cached, drafter.sizes) == (50, [50])
    else:  # a state cannot go back: all is prefilled anew
        assert (cached, drafter.sizes) == (0, [50, 50])
    assert held(session) == PROMPT


def test_going_back_may_end_among_what_waits_or_before_it() -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter)
    for shared, expected in ((52, [50, 2]), (50, [50]), (30, [50])):
        drafter.calls.clear()
        session.reset()
        session.begin([*PROMPT, 9], 2048)
        decode(session, [9, 5, 6, 7])
        text = [*PROMPT, 9, 5, 6, 7]
        assert session.begin([*text[:shared], 1], 2048) == shared
        assert held(session) == text[:shared]
        assert drafter.sizes == expected


class StatefulDrafter(FollowingDrafter):
    """Its layer cannot drop tokens."""

    def new_cache(self) -> list[Any]:
        return [ConcatenateKVCache()]


@pytest.mark.parametrize(("shared", "cached"), [(52, 52), (50, 50), (49, 0)])
def test_a_drafter_that_cannot_go_back_need_not_from_what_it_has_not_absorbed(shared: int, cached: int) -> None:
    session = session_of(StatefulDrafter())
    text = [*PROMPT, 9, 5, 6, 7]
    session.begin(text[:51], 2048)
    decode(session, text[50:])
    assert session.begin([*text[:shared], 1, 1], 2048) == cached
    assert held(session) == [*text[:shared], 1]


def test_a_stop_cuts_what_waits_and_hidden_rows_do_not_outlive_a_text() -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter)
    session.begin([*PROMPT, 9], 2048)
    decode(session, [9, 5, 6, 7], hidden=True)
    session.settle(52)
    tokens, hidden = drafter.calls[-1]
    assert (tokens, hidden.tolist()) == ([9, 5], [[50], [51]])
    assert not session._backlog.has_rows
    assert held(session) == [*PROMPT, 9, 5]


def test_a_snapshot_of_what_was_decoded_has_the_drafter_up_to_date() -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter, "rows", budget=10**9)
    session.begin([*PROMPT, 9], 2048)
    answer = [9, *[20 + place for place in range(40)]]
    decode(session, answer)
    session.settle(91)
    # The next turn ends where the live cache does: nothing is prefilled, and the snapshot has what was decoded.
    assert session.begin([*PROMPT, *answer, 1], 2048) == 91
    assert drafter.sizes == [50, 41]
    session.reset()
    assert session.begin([*PROMPT, *answer, 2], 2048) == 91
    assert drafter.sizes == [50, 41]
    assert held(session) == [*PROMPT, *answer]


@pytest.mark.parametrize("emptied_by", ["reset", "forget"])
def test_nothing_waits_for_a_cache_that_is_gone(emptied_by: str) -> None:
    drafter = FollowingDrafter()
    session = session_of(drafter)
    session.begin([*PROMPT, 9], 2048)
    decode(session, [9, 5, 6], hidden=True)
    getattr(session, emptied_by)()
    assert len(session._backlog) == 0
    assert held(session) == []
    session.begin([7, 8, 9], 2048)
    assert drafter.sizes == [50, 2]


def test_another_drafter_never_sees_what_waited_for_the_one_before() -> None:
    first, second = FollowingDrafter(), FollowingDrafter()
    session = session_of(first)
    session.begin([*PROMPT, 9], 2048)
    decode(session, [9, 5], hidden=True)
    session.serve(second)
    session.catch_up()
    assert (first.sizes, second.calls) == ([50], [])
    session.begin([*PROMPT, 8], 2048)
    assert held(session) == PROMPT
    assert second.sizes == [50]
