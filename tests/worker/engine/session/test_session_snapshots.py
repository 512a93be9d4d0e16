"""Where a session stops its prefill to keep a snapshot, and from where the next request goes on."""

from collections.abc import Iterator

import mlx.core as mx
import pytest
from remembering_model import ROWS_ONLY, RememberingModel, cold_logits

from worker.engine.session import PrefixTree, Session
from worker.engine.session.session import MIN_SAVED_TOKENS
from worker.engine.verify.verifier import Verifier

PLENTY = 10**9
SYSTEM = [10 + place % 70 for place in range(100)]


def session_of(*kinds: str, budget: int = PLENTY, reusable: int | None = None) -> tuple[Session, RememberingModel]:
    model = RememberingModel(*kinds)
    return Session(Verifier(model, "plain"), PrefixTree(budget), reusable), model


def begin(session: Session, model: RememberingModel, prompt: list[int], chunk: int = 2048) -> tuple[int, list[int]]:
    """Tokens that were in the cache, and the passes that brought the others there; checks what came of it."""
    before = len(model.passes)
    cached = session.begin(prompt, chunk)
    passes = list(model.passes[before:])
    decode(session, model, prompt[-1:])
    return cached, passes


def decode(session: Session, model: RememberingModel, tokens: list[int]) -> None:
    for token in tokens:
        logits = session._verifier.step(mx.array([token]), session.cache)
        session.extend([token])
        assert logits[-1].tolist() == cold_logits(model, session.tokens)


@pytest.mark.parametrize("kind", ["arrays", "unknown", "window", "chunk", "several"])
def test_the_third_request_goes_on_from_the_end_of_the_shared_prefix(kind: str) -> None:
    session, model = session_of(kind)
    assert begin(session, model, [*SYSTEM, *[1] * 40, 9]) == (0, [140])
    # The second request shows what is shared: prefill stops there, and goes on.
    assert begin(session, model, [*SYSTEM, *[2] * 45, 9]) == (0, [100, 45])
    assert begin(session, model, [*SYSTEM, *[3] * 50, 9]) == (100, [50])
    assert begin(session, model, [*SYSTEM, *[4] * 5, 9]) == (100, [5])


@pytest.mark.parametrize("kind", ROWS_ONLY)
def test_rows_are_reused_from_the_second_request_on(kind: str) -> None:
    session, model = session_of(kind)
    assert begin(session, model, [*SYSTEM, *[1] * 40, 9]) == (0, [140])
    assert begin(session, model, [*SYSTEM, *[2] * 45, 9]) == (100, [45])
    # Neither of the two is in the live cache any more.
    assert begin(session, model, [7] * 50) == (0, [49])
    assert begin(session, model, [*SYSTEM, *[1] * 20, *[3] * 30, 9]) == (120, [30])
    assert begin(session, model, [*SYSTEM, *[2] * 44, 9]) == (144, [])


@pytest.mark.parametrize("kind", ["rows", "arrays"])
def test_a_repeated_prompt_is_prefilled_once(kind: str) -> None:
    session, model = session_of(kind)
    prompt = [*SYSTEM, 9]
    assert begin(session, model, prompt) == (0, [100])
    decode(session, model, [5, 6, 7])
    for _ in range(3):
        assert begin(session, model, prompt) == (100, [])
        decode(session, model, [5, 6, 7])


@pytest.mark.parametrize("kind", ["rows", "arrays", "unknown"])
def test_a_conversation_goes_on_in_the_live_cache(kind: str) -> None:
    session, model = session_of(kind)
    begin(session, model, [*SYSTEM, 9])
    decode(session, model, [5, 6, 7])
    assert begin(session, model, [*SYSTEM, 9, 5, 6, 7, *[8] * 3]) == (104, [2])


def test_an_answer_that_another_prompt_repeats_in_part_shows_the_fork_as_well() -> None:
    session, model = session_of("arrays")
    begin(session, model, [*SYSTEM, 9])
    answer = [30 + place for place in range(40)]
    decode(session, model, answer)
    # The tree has the prompt only; the live tokens show 36 more that are shared.
    assert begin(session, model, [*SYSTEM, 9, *answer[:35], 1, 1, 1]) == (100, [36, 2])
    assert begin(session, model, [*SYSTEM, 9, *answer[:35], 2, 2, 2]) == (136, [2])


@pytest.mark.parametrize(("size", "passes"), [(MIN_SAVED_TOKENS, [32, 40]), (MIN_SAVED_TOKENS - 1, [71])])
def test_a_short_shared_prefix_is_not_worth_a_stop(size: int, passes: list[int]) -> None:
    session, model = session_of("arrays")
    begin(session, model, [*SYSTEM[:size], *[1] * 40, 9])
    assert begin(session, model, [*SYSTEM[:size], *[2] * 40, 9]) == (0, passes)


@pytest.mark.parametrize("kind", ["rows", "arrays"])
def test_the_end_of_a_prompt_is_kept_when_it_is_far_enough_from_what_is_kept(kind: str) -> None:
    session, model = session_of(kind)
    tree = session._tree
    begin(session, model, [*SYSTEM, 9])
    before = tree.nbytes
    begin(session, model, [*SYSTEM, *[1] * (MIN_SAVED_TOKENS - 1), 9])
    assert tree.nbytes == before
    begin(session, model, [*SYSTEM, *[1] * MIN_SAVED_TOKENS, 9])
    assert tree.nbytes > before


def test_a_prefill_goes_in_chunks_between_its_stops() -> None:
    session, model = session_of("arrays", "rows")
    assert begin(session, model, [*SYSTEM, *[1] * 40, 9], chunk=60) == (0, [60, 60, 20])
    assert begin(session, model, [*SYSTEM, *[2] * 40, 9], chunk=60) == (0, [60, 40, 40])
    assert begin(session, model, [*SYSTEM, *[3] * 70, 9], chunk=60) == (100, [60, 10])


@pytest.mark.parametrize("kind", ["rows", "arrays"])
def test_a_cancelled_prefill_leaves_a_shorter_cache_and_no_snapshot(kind: str) -> None:
    session, model = session_of(kind)
    answers: Iterator[bool] = iter([False, True])
    assert session.begin([*SYSTEM, 9], 60, lambda: next(answers)) == 0
    assert session.tokens == SYSTEM[:60]
    assert session._tree.nbytes == 0
    assert begin(session, model, [*SYSTEM, 9], chunk=60) == (60, [40])


@pytest.mark.parametrize("kind", ["rows", "arrays", "unknown"])
def test_a_lost_live_cache_leaves_the_snapshots(kind: str) -> None:
    session, model = session_of(kind)
    begin(session, model, [*SYSTEM, 9])
    session.reset()
    assert session.tokens == []
    assert begin(session, model, [*SYSTEM, 9]) == (100, [])


@pytest.mark.parametrize(("kind", "cached"), [("rows", 102), ("arrays", 100), ("concatenated rows", 100)])
def test_where_a_cache_cannot_go_back_the_snapshot_is_taken(kind: str, cached: int) -> None:
    session, model = session_of(kind)
    begin(session, model, [*SYSTEM, 9])
    decode(session, model, [5, 6])
    assert begin(session, model, [*SYSTEM, 9, 5, 8]) == (cached, [2] if cached == 100 else [])


@pytest.mark.parametrize("kind", ["rows", "arrays", "concatenated rows", "window", "unknown"])
def test_a_prompt_that_goes_on_where_the_text_ended_finds_all_of_it(kind: str) -> None:
    session, model = session_of(kind)
    begin(session, model, [*SYSTEM, 9])
    decode(session, model, [5, 6])
    assert begin(session, model, [*SYSTEM, 9, 5, 6, 7, 8]) == (103, [1])


def test_a_chunked_cache_goes_back_only_while_nothing_has_left_it() -> None:
    # Chunks of 8: mlx-lm trims it at any length, but rows in front of the last 8 are gone.
    session, model = session_of("chunk")
    session.begin([1, 2, 3, 4, 5, 6, 9], 2048)
    decode(session, model, [9])
    assert begin(session, model, [1, 2, 3, 4, 5]) == (4, [])
    decode(session, model, [5] * 8)
    assert begin(session, model, [1, 2, 3, 4, *[5] * 7, 6]) == (0, [11])


@pytest.mark.parametrize("kind", ["rows", "arrays"])
def test_without_a_budget_only_the_live_cache_is_reused(kind: str) -> None:
    session, model = session_of(kind, budget=0)
    begin(session, model, [*SYSTEM, *[1] * 40, 9])
    cached = 100 if kind == "rows" else 0
    assert begin(session, model, [*SYSTEM, *[2] * 40, 9]) == (cached, [140 - cached])
    assert session._tree.nbytes == 0
    session.reset()
    assert begin(session, model, [*SYSTEM, *[2] * 40, 9]) == (0, [140])


def test_a_snapshot_that_does_not_fit_is_not_kept() -> None:
    session, model = session_of("rows", budget=2 * 4 * 32 * 99)
    begin(session, model, [*SYSTEM, 9])
    assert session._tree.nbytes == 0
    begin(session, model, [*SYSTEM[:99], 9])
    assert session._tree.nbytes == 2 * 4 * 32 * 99


@pytest.mark.parametrize("kind", ["rows", "arrays"])
def test_content_that_depends_on_the_passes_is_not_reused(kind: str) -> None:
    # A pass that ends beyond 75 makes all of its rows depend on its end. Of a cold prefill in passes of 30, those up to
    # 60 are harmless.
    session, model = session_of(kind, reusable=75)
    prompt = [*SYSTEM, *[1] * 40]
    assert begin(session, model, prompt, chunk=30) == (0, [30, 30, 30, 30, 19])
    # The passes beyond are those of a cold prefill.
    assert begin(session, model, prompt, chunk=30) == (60, [30, 30, 19])
    session.reset()
    assert begin(session, model, prompt, chunk=30) == (60, [30, 30, 19])
    # The live rows 60 to 68 come from a pass that ended at 90.
    assert begin(session, model, prompt[:70], chunk=30) == (60, [9])
    # Now they, and the token after them, come from passes that ended before 75.
    assert begin(session, model, prompt[:76], chunk=30) == (70, [5])
    assert begin(session, model, prompt, chunk=80) == (0, [80, 59])


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    session, model = session_of("rows", "arrays")
    assert begin(session, model, [5]) == (0, [])
    assert begin(session, model, [5]) == (0, [])


def test_the_live_cache_wins_where_it_reaches_as_far() -> None:
    session, model = session_of("rows")
    begin(session, model, [*SYSTEM, 9])
    live = session.cache
    assert begin(session, model, [*SYSTEM, 9])[0] == 100
    assert session.cache is live


def test_what_row_buffers_were_before_they_grew_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = session_of("rows")
    cleared: list[int] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(len(session.tokens)))
    for _ in range(200):
        session.extend([7, 7, 7])
    # Buffers grow with the first token after a multiple of 256; a pass of three reaches it at the latest here.
    assert cleared == [258, 513]
