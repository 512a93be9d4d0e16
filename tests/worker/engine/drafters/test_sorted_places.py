"""Sorted places against a search that looks at every place."""

import random
from array import array
from collections.abc import Sequence

import pytest

from worker.engine.drafters.sorted_places import DEPTH, SortedPlaces


def places_of(tokens: Sequence[int], context: Sequence[int] = ()) -> SortedPlaces:
    places = SortedPlaces()
    places.begin(context)
    for token in tokens:
        places.append(token)
    return places


def found(places: SortedPlaces, context: Sequence[int], count: int = 10**6) -> list[tuple[int, int]]:
    """(start, match) of the nearest places."""
    return [(one.start, one.match) for one in places.nearest(array("i", context), count)]


def matches(tokens: Sequence[int], first: int, context: Sequence[int]) -> list[tuple[int, int]]:
    """Every place from `first` on that the last of `context` precede: longest match first, then the latest."""
    every = []
    for start in range(first, len(tokens)):
        match = 0
        while (
            match < min(start, len(context), DEPTH) and tokens[start - match - 1] == context[len(context) - match - 1]
        ):
            match += 1
        if match:
            every.append((start, match))
    return sorted(every, key=lambda one: (one[1], one[0]), reverse=True)


def random_text(rng: random.Random, length: int) -> list[int]:
    """Of three tokens, with long repeats: many ties, and matches of every length."""
    tokens: list[int] = []
    while len(tokens) < length:
        start = rng.randrange(len(tokens) + 1)
        tokens += [*tokens[start : start + rng.randrange(40)], rng.randrange(3)]
    return tokens[:length]


@pytest.mark.parametrize("seed", range(10))
def test_all_places_that_match_are_found_longest_match_first(seed: int) -> None:
    rng = random.Random(seed)
    text = random_text(rng, 300)
    places = places_of(text)
    for _ in range(20):
        end = rng.randrange(1, 300)
        context = [*text[max(0, end - rng.randrange(1, DEPTH)) : end], *[rng.randrange(4)] * rng.randrange(2)][-DEPTH:]
        expected = [(start + DEPTH, match) for start, match in matches(text, 0, context)]
        assert found(places, context) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_few_places_are_those_of_the_longest_matches(seed: int) -> None:
    text = random_text(random.Random(seed), 300)
    places, context = places_of(text), text[-DEPTH:]
    every = [match for _, match in matches(text, 0, context)]
    for count in (1, 3, 24):
        assert [match for _, match in found(places, context, count)] == every[:count]


def test_a_text_s_first_places_match_its_context_and_no_place_lies_in_it() -> None:
    places = places_of([20, 21], context=[1, 2, 3])
    assert found(places, [1, 2, 3]) == [(DEPTH, 3)]
    assert found(places, [1, 2]) == []


def test_no_match_reaches_into_the_text_before() -> None:
    places = SortedPlaces()
    for answer in ([20, 21], [22, 23]):
        places.begin([])
        for token in answer:
            places.append(token)
    assert found(places, [20, 21]) == []
    assert found(places, [20, 21, 22]) == [(2 * DEPTH + 3, 1)]


def test_more_tokens_than_the_depth_count_as_the_depth() -> None:
    places = places_of([*range(100), *range(100)])
    assert found(places, list(range(100 - DEPTH, 100)), 1) == [(DEPTH + 100, DEPTH)]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_is_as_if_it_had_never_been_longer(seed: int) -> None:
    rng = random.Random(seed)
    text = random_text(rng, 200)
    places = places_of(text)
    for length in (150, 150, 40, 0):
        places.keep(0, DEPTH + length)
        fresh = places_of(text[:length])
        assert (places.tokens, places._places) == (fresh.tokens, fresh._places)
    for token in text[:60]:
        places.append(token)
    fresh = places_of(text[:60])
    assert (places.tokens, places._places) == (fresh.tokens, fresh._places)


def test_the_first_texts_can_be_forgotten() -> None:
    rng = random.Random(3)
    texts = [([rng.randrange(3)] * rng.randrange(4), random_text(rng, rng.randrange(1, 60))) for _ in range(6)]
    places = SortedPlaces()
    starts = []
    for context, text in texts:
        starts.append(len(places.tokens))
        places.begin(context)
        for token in text:
            places.append(token)
    places.keep(starts[4], len(places.tokens))
    fresh = SortedPlaces()
    for context, text in texts[4:]:
        fresh.begin(context)
        for token in text:
            fresh.append(token)
    assert (places.tokens, places._places) == (fresh.tokens, fresh._places)


def test_an_empty_text_and_an_empty_context_match_nothing() -> None:
    empty = places_of([])
    assert found(empty, [1]) == found(empty, []) == []
    empty.keep(0, DEPTH)
    assert found(places_of([1, 2]), []) == []
