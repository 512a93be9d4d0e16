"""The memory of a batch: what it holds, what it forgets, and that it stays within its bounds."""

import random
from array import array
from collections.abc import Sequence

import pytest

from worker.engine.drafters.batch_memory import MAX_BATCHES, MAX_TOKENS, BatchMemory, Outputs
from worker.engine.drafters.sorted_places import DEPTH, NONE

Answer = tuple[list[int], list[int]]


def filled(answers: Sequence[Answer], max_tokens: int = MAX_TOKENS) -> Outputs:
    outputs = Outputs(max_tokens)
    for prompt, answer in answers:
        outputs.add(prompt, answer)
    return outputs


def continuations(outputs: Outputs, *context: int) -> list[int]:
    """The token after each match, best match first."""
    return [one.tokens[one.start] for one in outputs.nearest(array("i", context), 100)]


def random_answers(seed: int, count: int) -> list[Answer]:
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(5) for _ in range(rng.randint(low, high))]

    return [(tokens(0, 30), tokens(0, 20)) for _ in range(count)]


def test_answers_are_found_and_prompts_are_not() -> None:
    outputs = filled([([1, 2, 3], [20, 21]), ([4, 5, 3], [20, 22])])
    assert continuations(outputs, 3) == [20, 20]
    assert continuations(outputs, 20) == [22, 21]
    assert continuations(outputs, 1, 2) == []
    assert continuations(outputs, 20, 22) == [NONE]


def test_an_answer_is_counted_as_often_as_it_was_given() -> None:
    outputs = filled([([1], [20, 21])] * 3 + [([1], [20, 22])])
    assert sorted(continuations(outputs, 1, 20)) == [21, 21, 21, 22]


@pytest.mark.parametrize("max_tokens", [DEPTH + 2, 100, 333])
def test_the_oldest_answers_go_first_and_leave_nothing(max_tokens: int) -> None:
    answers = random_answers(max_tokens, 40)
    outputs = Outputs(max_tokens)
    for count, (prompt, answer) in enumerate(answers, start=1):
        outputs.add(prompt, answer)
        assert len(outputs) <= max_tokens
        kept = count
        while kept and sum(DEPTH + len(one) + 1 for _, one in answers[count - kept : count]) > max_tokens:
            kept -= 1
        if kept:
            fresh = filled(answers[count - kept : count])
            assert outputs._places.tokens == fresh._places.tokens
            assert outputs._places._places == fresh._places._places


def test_of_an_answer_longer_than_the_memory_the_end_is_kept() -> None:
    outputs = filled([([1], [5]), ([1], list(range(100, 200)))], max_tokens=DEPTH + 31)
    assert len(outputs) == DEPTH + 31
    assert continuations(outputs, 199) == [NONE]
    assert continuations(outputs, 168, 169) == [170]
    assert continuations(outputs, 168) == []
    assert continuations(outputs, 1) == []


def test_an_empty_answer_says_that_the_text_ended_there() -> None:
    assert continuations(filled([([1, 2], [])]), 2) == [NONE]


def test_a_token_takes_eight_bytes() -> None:
    outputs = filled([([1], list(range(1000)))] * 20)
    places = outputs._places
    assert places.tokens.itemsize == places._places.itemsize == 4
    assert len(places._places) == 20 * 1001
    assert len(places.tokens) == 20 * (DEPTH + 1001)


def test_batches_do_not_see_each_other_and_the_least_recent_one_goes() -> None:
    memory = BatchMemory()
    memory.of("a").add([1], [20])
    assert len(memory.of("b")) == 0
    assert len(memory.of("a")) > 0
    for other in range(MAX_BATCHES - 1):
        memory.of(f"other {other}").add([1], [30])
    assert continuations(memory.of("a"), 1) == [20]
    memory.of("one more")
    memory.of("and another")
    assert continuations(memory.of("a"), 1) == [20]
    for other in range(MAX_BATCHES):
        memory.of(f"new {other}")
    assert continuations(memory.of("a"), 1) == []


def test_cleared_it_knows_nothing() -> None:
    memory = BatchMemory()
    memory.of("a").add([1], [20])
    memory.clear()
    assert continuations(memory.of("a"), 1) == []
