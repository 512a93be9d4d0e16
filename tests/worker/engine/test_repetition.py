"""Repetition of token sequences, counted by hand and against definitions written out."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.repetition import RepetitionLimit, longest_repeat, repeated_share


def longest_repeat_by_definition(tokens: Sequence[int]) -> int:
    for size in range(len(tokens) - 1, 0, -1):
        grams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
        if len(set(grams)) < len(grams):
            return size
    return 0


def end_by_definition(tokens: Sequence[int], limit: float) -> int | None:
    """Tokens until the share of repeated 6-grams in the last 256 tokens, 64 at least, exceeds `limit`."""
    for end in range(64, len(tokens) + 1):
        latest = tokens[max(0, end - 256) : end]
        grams = [tuple(latest[start : start + 6]) for start in range(len(latest) - 5)]
        if 1 - len(set(grams)) / len(grams) > limit:
            return end
    return None


def end_of(tokens: Sequence[int], limit: float) -> int | None:
    guard = RepetitionLimit(limit)
    return next((place for place, token in enumerate(tokens, 1) if guard.exceeded_by(token)), None)


@pytest.mark.parametrize(
    ("tokens", "longest"),
    [
        ([], 0),
        ([5], 0),
        ([1, 2, 3, 4], 0),
        ([1, 2, 3, 1], 1),
        ([7, 7], 1),
        # The occurrences of a loop overlap: all but its first turn.
        ([1, 2, 3] * 5, 12),
        ([9] * 10, 9),
        ([1, 2, 3, 4, 5, 0, 2, 3, 4, 9], 3),
        # Lengths that are no power of two, with shorter repeats elsewhere.
        ([*range(100, 113), 1, *range(100, 113), 2, 1, 3], 13),
    ],
)
def test_the_longest_repeat_by_hand(tokens: list[int], longest: int) -> None:
    assert longest_repeat(tokens) == longest


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_longest_repeat_is_that_of_the_definition(tokens: list[int]) -> None:
    assert longest_repeat(tokens) == longest_repeat_by_definition(tokens)


def test_the_longest_repeat_of_a_very_long_text() -> None:
    half = [(place * place * 31 + place) % 50021 for place in range(50_000)]
    # 50021 is prime, so a window of two neighbours tells its place; both halves are the same.
    assert longest_repeat([*half, 60_000, *half]) == 50_000


def test_the_repeated_share_by_hand() -> None:
    assert repeated_share([1, 2, 3, 4, 5]) == 0.0
    assert repeated_share(range(100)) == 0.0
    # 55 six-grams, three of them different.
    assert repeated_share([1, 2, 3] * 20) == pytest.approx(52 / 55)


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        # 64 tokens of a loop of three are 59 six-grams, three of them different: a share of 0.949.
        (0.1, 64),
        (0.94, 64),
        # 1 - 3 / g exceeds 0.95 from g = 61 on, which are 66 tokens.
        (0.95, 66),
        # 251 six-grams are the most that the window holds: 0.98805.
        (0.988, 256),
        (0.9881, None),
        (1.0, None),
    ],
)
def test_a_loop_ends_where_its_share_exceeds_the_limit(limit: float, end: int | None) -> None:
    assert end_of([1, 2, 3] * 200, limit) == end


def test_what_has_left_the_window_does_not_count() -> None:
    assert end_of([*range(300), *range(300)], 0.01) is None
    # 255 tokens are 250 six-grams, 50 of them again; the next token makes it 51 of 251.
    assert end_of([*range(200), *range(200)], 0.2) == 256
    assert end_of([*range(200), *range(200)], 0.21) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    pieces=st.lists(
        st.one_of(
            st.lists(st.integers(0, 2), min_size=1, max_size=40),
            st.integers(3, 90).map(lambda start: list(range(start, start + 40))),
        ),
        max_size=20,
    ),
    limit=st.sampled_from([0.05, 0.2, 0.5, 0.8, 1.0]),
)
def test_the_limit_is_that_of_the_definition(pieces: list[list[int]], limit: float) -> None:
    tokens = [token for piece in pieces for token in piece]
    assert end_of(tokens, limit) == end_by_definition(tokens, limit)
