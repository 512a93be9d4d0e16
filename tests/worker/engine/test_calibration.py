"""Calibration: it learns what guesses are worth, recovers, and stays monotone."""

import json
import math
import random
from typing import Any

import pytest

from worker.engine.calibration import Calibration
from worker.engine.drafters.guide import Mode
from worker.engine.tree import TokenTree

RIGHT, WRONG = 5, 6


def guess(confidence: float, depth: int = 1) -> TokenTree:
    """A chain of `depth` guesses of RIGHT."""
    tree = TokenTree(0)
    for node in range(depth):
        tree.add(node, RIGHT, confidence)
    return tree


def value(calibration: Calibration, confidence: float) -> float:
    tree = guess(confidence)
    calibration.appraise(tree)
    return tree.values[1]


def teach(calibration: Calibration, outcome: int, times: int, confidence: float = 0.65) -> None:
    for _ in range(times):
        calibration.learn(guess(confidence), [outcome])


def test_before_any_outcome_a_guess_is_worth_about_its_confidence() -> None:
    calibration = Calibration()
    for confidence, bin_centre in ((0.05, 0.05), (0.3, 0.325), (0.65, 0.65), (0.98, 0.98)):
        assert value(calibration, confidence) == pytest.approx(bin_centre)


def test_a_drafter_that_is_always_right_comes_to_be_trusted_and_one_that_is_never_does_not() -> None:
    right, wrong = Calibration(), Calibration()
    teach(right, RIGHT, 60)
    teach(wrong, WRONG, 60)
    assert value(right, 0.65) > 0.94
    assert value(wrong, 0.65) < 0.15


def test_it_recovers_within_a_request_and_across_requests() -> None:
    calibration = Calibration()
    for _ in range(20):
        teach(calibration, WRONG, 50)
        calibration.start_request()
    assert value(calibration, 0.65) < 0.05
    teach(calibration, RIGHT, 40)
    assert value(calibration, 0.65) > 0.8
    for _ in range(30):
        calibration.start_request()
        teach(calibration, RIGHT, 50)
    calibration.start_request()
    assert value(calibration, 0.65) > 0.9


def test_history_remembers_across_requests() -> None:
    calibration = Calibration()
    teach(calibration, WRONG, 50)
    before = value(calibration, 0.65)
    calibration.start_request()
    assert value(calibration, 0.65) == pytest.approx(before, abs=0.1)
    assert value(calibration, 0.65) < 0.2


def test_the_estimate_by_hand() -> None:
    # Bin [0.6, 0.7): prior 0.65 with weight 4; three of four right in an earlier request, one of two in this one.
    calibration = Calibration()
    teach(calibration, RIGHT, 3)
    teach(calibration, WRONG, 1)
    calibration.start_request()
    teach(calibration, RIGHT, 1)
    teach(calibration, WRONG, 1)
    history = (3 + 4 * 0.65) / (4 + 4)
    # Each outcome moves the text's bias in logit space by 0.15 of its surprise.
    odds = history / (1 - history)
    after_one = 0.15 * (1 - history)
    lifted = odds * math.exp(after_one) / (1 + odds * math.exp(after_one))
    after_two = after_one - 0.15 * lifted
    lifted = odds * math.exp(after_two) / (1 + odds * math.exp(after_two))
    assert value(calibration, 0.65) == pytest.approx((1 + 6 * lifted) / (2 + 6))


def test_a_text_that_suits_the_drafter_lifts_what_it_has_not_tried_yet() -> None:
    calibration = Calibration()
    for confidence in (0.3, 0.65, 0.85):
        teach(calibration, RIGHT, 30, confidence)
        teach(calibration, WRONG, 30, confidence)
    calibration.start_request()
    before = value(calibration, 0.85)
    teach(calibration, RIGHT, 20, confidence=0.65)
    assert value(calibration, 0.85) > before + 0.2
    calibration.start_request()
    teach(calibration, WRONG, 20, confidence=0.85)
    assert value(calibration, 0.3) < before - 0.2
    calibration.start_request()
    # Another text starts without a bias.
    assert value(calibration, 0.3) == pytest.approx(0.5, abs=0.05)


def test_values_multiply_down_a_path_and_never_rise() -> None:
    calibration = Calibration()
    teach(calibration, RIGHT, 30)
    tree = TokenTree(0)
    rng = random.Random(2)
    while len(tree) < 30:
        tree.add(rng.randrange(len(tree)), rng.randrange(9), rng.random())
    calibration.appraise(tree)
    assert tree.values[0] == 1
    for node in range(1, len(tree)):
        assert 0 < tree.values[node] <= tree.values[tree.parents[node]]


def test_values_are_monotone_in_confidence() -> None:
    calibration = Calibration()
    rng = random.Random(3)
    for _ in range(300):
        # Confident guesses fail and timid ones succeed: an order that the values must not take over.
        confidence = rng.random()
        calibration.learn(guess(confidence), [WRONG if rng.random() < confidence else RIGHT])
    values = [value(calibration, step / 50) for step in range(51)]
    assert values == sorted(values)


def test_the_deep_learn_apart_from_the_shallow() -> None:
    calibration = Calibration()
    for _ in range(40):
        calibration.learn(guess(0.65, depth=8), [RIGHT] * 7 + [WRONG])
    tree = guess(0.65, depth=8)
    calibration.appraise(tree)
    steps = [tree.values[node] / tree.values[node - 1] for node in range(1, 9)]
    assert min(steps[:7]) > 0.9
    assert steps[7] < 0.2


def test_only_guesses_with_a_known_outcome_are_counted() -> None:
    # The texts end after one token: what the deeper guesses were worth is not known.
    calibration = Calibration()
    before = guess(0.65, depth=3)
    calibration.appraise(before)
    for _ in range(50):
        calibration.start_request()
        calibration.learn(guess(0.65, depth=3), [RIGHT])
    after = guess(0.65, depth=3)
    calibration.appraise(after)
    assert after.values[1] > 0.9
    for node in (2, 3):
        was = before.values[node] / before.values[node - 1]
        assert after.values[node] / after.values[node - 1] == pytest.approx(was, abs=0.01)
    assert sum(map(sum, calibration.record["greedy"]["1"]["tried"][1:])) == 0


def test_a_draft_is_followed_beyond_its_own_pass() -> None:
    calibration = Calibration()
    root = TokenTree(RIGHT)
    # One draft of four, then plain passes: three tokens as it guessed, then another one.
    calibration.learn(guess(0.65, depth=4), [RIGHT])
    for token in (RIGHT, RIGHT, WRONG, RIGHT):
        calibration.learn(root, [token])
    tried, accepted = calibration.record["greedy"]["1"]["tried"], calibration.record["greedy"]["1"]["accepted"]
    # Depth 1; depths 2 and 3; depth 4.
    assert [row[5] for row in tried] == [1, 2, 1, 0]
    assert [row[5] for row in accepted] == [1, 2, 0, 0]
    assert sum(map(sum, tried)) == 4


def test_a_draft_is_left_where_the_text_leaves_it() -> None:
    calibration = Calibration()
    calibration.learn(guess(0.65, depth=4), [WRONG, RIGHT, RIGHT])
    calibration.learn(TokenTree(RIGHT), [RIGHT])
    assert sum(map(sum, calibration.record["greedy"]["1"]["tried"])) == 1


def test_a_distrusted_drafter_shows_its_depth_without_being_verified() -> None:
    calibration = Calibration()
    for _ in range(60):
        calibration.learn(guess(0.65, depth=8), [WRONG])
    for _ in range(3):
        calibration.start_request()
        calibration.learn(guess(0.65, depth=8), [RIGHT, WRONG])
    calibration.start_request()
    for _ in range(40):
        calibration.learn(guess(0.65, depth=8), [RIGHT])  # plain passes, one token each
    tree = guess(0.65, depth=8)
    calibration.appraise(tree)
    assert min(tree.values[node] / tree.values[node - 1] for node in range(1, 9)) > 0.8


def test_siblings_of_the_right_guess_count_as_wrong() -> None:
    calibration = Calibration()
    for _ in range(40):
        tree = TokenTree(0)
        tree.add(0, RIGHT, 0.65)
        tree.add(0, WRONG, 0.3)
        calibration.learn(tree, [RIGHT])
    assert value(calibration, 0.65) > 0.9
    assert value(calibration, 0.3) < 0.1


def test_what_was_learned_survives_a_file() -> None:
    rng = random.Random(4)
    calibration = Calibration()
    for number in range(900):
        if number % 100 == 0:
            calibration.start_request()
        confidence = rng.random()
        calibration.learn(guess(confidence, depth=3), [RIGHT if rng.random() < confidence else WRONG] * 2)
    record = json.loads(json.dumps(calibration.record))
    again = Calibration.of(record)
    assert again.record == record
    calibration.start_request()
    for confidence in (0.05, 0.3, 0.65, 0.98):
        assert value(again, confidence) == value(calibration, confidence)


def test_a_record_forgets_the_old_in_favour_of_the_new() -> None:
    calibration = Calibration()
    teach(calibration, RIGHT, 4000)
    assert calibration.record["greedy"]["1"]["tried"][0][5] == 400
    calibration.start_request()
    teach(calibration, WRONG, 400)
    assert calibration.record["greedy"]["1"]["tried"][0][5] == 400
    assert calibration.record["greedy"]["1"]["accepted"][0][5] == pytest.approx(200)


ROWS = [[0.0] * 10 for _ in range(4)]


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"tried": ROWS},
        {"tried": ROWS[:3], "accepted": ROWS},
        {"tried": ROWS, "accepted": [[1.0] * 10 for _ in range(4)]},
        {"tried": [[float("nan")] * 10 for _ in range(4)], "accepted": ROWS},
        {"tried": [[float("inf")] * 10 for _ in range(4)], "accepted": ROWS},
        {"tried": ROWS, "accepted": [[-1.0] * 10 for _ in range(4)]},
        # More than is ever kept: what such numbers give is no probability any more.
        {"tried": [[1e20] * 10 for _ in range(4)], "accepted": [[1e20] * 10 for _ in range(4)]},
        {"tried": ROWS, "accepted": 5},
        {"tried": ROWS, "accepted": [["many"] * 10 for _ in range(4)]},
    ],
)
def test_a_record_that_cannot_be_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Calibration.of({"noise": {"1": record}})


def test_a_source_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError):
        Calibration.of({"greedy": {"suffix": {"tried": ROWS, "accepted": ROWS}}})


@pytest.mark.parametrize("record", [{"1": {"tried": ROWS, "accepted": ROWS}}, {"warm": {}}, {"odds": 3}])
def test_a_record_that_is_not_by_mode_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises((ValueError, AttributeError)):
        Calibration.of(record)


def test_each_mode_is_learned_by_itself() -> None:
    calibration = Calibration()
    calibration.start_request("noise")
    teach(calibration, WRONG, 60)
    calibration.start_request("greedy")
    teach(calibration, RIGHT, 60)
    again = Calibration.of(json.loads(json.dumps(calibration.record)))

    def learned(known: Calibration, mode: Mode) -> float:
        known.start_request(mode)
        return value(known, 0.65)

    for known in (calibration, again):
        assert learned(known, "greedy") > 0.8
        assert learned(known, "noise") < 0.2
        assert learned(known, "odds") == pytest.approx(0.65)


def test_outcomes_of_the_last_request_go_to_its_own_mode() -> None:
    calibration = Calibration()
    calibration.start_request("noise")
    calibration.learn(guess(0.65, depth=4), [RIGHT])
    calibration.start_request("odds")
    # The draft of before is not followed into another text.
    calibration.learn(TokenTree(RIGHT), [RIGHT])
    assert {mode: sum(map(sum, rates["1"]["tried"])) for mode, rates in calibration.record.items()} == {"noise": 1}


def test_each_drafter_of_a_mixture_is_judged_by_itself_and_their_agreement_once_more() -> None:
    calibration = Calibration()
    for _ in range(60):
        tree = TokenTree(0)
        tree.add(0, RIGHT, 0.65, source=0b01)
        tree.add(0, WRONG, 0.65, source=0b10)
        calibration.learn(tree, [RIGHT])
        agreed = TokenTree(0)
        agreed.add(0, RIGHT, 0.65, source=0b01)
        agreed.add(0, RIGHT, 0.65, source=0b10)
        # Their agreement was right half of the time.
        calibration.learn(agreed, [RIGHT])
        calibration.learn(agreed, [WRONG])

    def worth(known: Calibration, source: int) -> float:
        tree = TokenTree(0)
        tree.add(0, RIGHT, 0.65, source)
        known.appraise(tree)
        return tree.values[1]

    assert worth(calibration, 0b01) > 0.94
    assert worth(calibration, 0b10) < 0.15
    assert 0.4 < worth(calibration, 0b11) < 0.6
    again = Calibration.of(json.loads(json.dumps(calibration.record)))
    assert worth(again, 0b01) > 0.8
    assert worth(again, 0b10) < 0.2


def test_different_guesses_that_two_drafters_are_sure_of_come_to_certainty_at_most() -> None:
    calibration = Calibration()
    for source in (0b01, 0b10):
        for _ in range(60):
            tree = TokenTree(0)
            tree.add(0, RIGHT, 0.65, source)
            calibration.learn(tree, [RIGHT])
    tree = TokenTree(0)
    one, other = tree.add(0, 1, 0.65, source=0b01), tree.add(0, 2, 0.65, source=0b10)
    below = tree.add(one, 3, 0.3, source=0b01)
    calibration.appraise(tree)
    # Each by itself is worth 0.95; one of the two at most is right.
    assert tree.values[one] == pytest.approx(0.5)
    assert tree.values[other] == pytest.approx(0.5)
    assert 0 < tree.values[below] < tree.values[one]


@pytest.mark.parametrize("seed", range(20))
def test_the_children_of_a_node_are_never_worth_more_than_it(seed: int) -> None:
    rng = random.Random(seed)
    calibration = Calibration()
    for _ in range(200):
        tree = TokenTree(0)
        for token in range(1, 4):
            tree.add(0, token, rng.random(), source=rng.randint(1, 3))
        calibration.learn(tree, [rng.randint(1, 4)])
    tree = TokenTree(0)
    while len(tree) < 40:
        tree.add(rng.randrange(len(tree)), rng.randrange(6), rng.random(), source=rng.randint(1, 3))
    calibration.appraise(tree)
    for node in range(len(tree)):
        assert sum(tree.values[child] for child in tree.children(node)) <= tree.values[node] * (1 + 1e-12)


class TwoDrafters:
    """Texts of tokens below 4, and two drafters of known acceptance that may agree, differ, or find nothing.

    Each guesses the next two tokens: the first drafter is right with 0.8 and then 0.5, the other with 0.4 and then 0.7,
    when it was right before.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._acceptance = {0b01: (0.8, 0.5), 0b10: (0.4, 0.7)}

    def round(self) -> tuple[TokenTree, list[int]]:
        """A merged draft, and the text that follows."""
        text = [self._rng.randrange(4) for _ in range(3)]
        tree = TokenTree(0)
        for source, (first, second) in self._acceptance.items():
            if self._rng.random() < 0.2:
                continue
            node = 0
            for chance, token in zip((first, second), text, strict=False):
                right = self._rng.random() < chance
                node = tree.add(node, token if right else (token + self._rng.randint(1, 3)) % 4, 0.65, source)
        return tree, text


def test_rounds_give_as_many_tokens_as_their_values_promise() -> None:
    calibration, drafters = Calibration(), TwoDrafters(seed=1)
    for _ in range(100):
        calibration.start_request()
        for _ in range(20):
            calibration.learn(*drafters.round())
    promised, given, rounds = 0.0, 0, 3000
    for _ in range(rounds):
        calibration.start_request()
        tree, text = drafters.round()
        calibration.appraise(tree)
        promised += sum(tree.values[1:])
        node: int | None = 0
        for token in text:
            node = tree.child(node, token)
            if node is None:
                break
            given += 1
    assert given / rounds > 0.8
    assert promised / rounds == pytest.approx(given / rounds, abs=0.06)
