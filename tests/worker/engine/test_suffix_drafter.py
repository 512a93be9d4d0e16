"""The suffix drafter: drafts are earlier continuations, and its state is nothing but the tokens it was given."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from worker.engine.drafters.batch_memory import Outputs
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.drafters.suffix import MAX_OCCURRENCES, SuffixDrafter
from worker.engine.philox import gumbel_noise
from worker.engine.sampling import History, Sampling
from worker.engine.tree import TokenTree

WIDE = DraftLimits(nodes=32, depth=16)


def draft(drafter: SuffixDrafter, pending: int, limits: DraftLimits = WIDE) -> TokenTree:
    tree = TokenTree(pending)
    drafter.draft(tree, limits, DraftContext())
    return tree


def content(tree: TokenTree) -> list[object]:
    return [tree.tokens, tree.parents, tree.confidences]


def cold(tokens: Sequence[int], limits: DraftLimits = WIDE) -> TokenTree:
    """The draft of a fresh drafter that was given `tokens` at once."""
    drafter = SuffixDrafter()
    drafter.prefill(tokens)
    return draft(drafter, tokens[-1], limits)


def repetitive(rng: random.Random, count: int) -> list[int]:
    """Tokens in which phrases come back."""
    tokens: list[int] = []
    while len(tokens) < count:
        if len(tokens) > 6 and rng.random() < 0.5:
            start = rng.randrange(len(tokens) - 4)
            tokens += tokens[start : start + rng.randint(2, 9)]
        else:
            tokens += [rng.randrange(6) for _ in range(rng.randint(1, 4))]
    return tokens[:count]


@pytest.mark.parametrize("seed", range(12))
def test_the_warm_state_equals_the_cold_state_after_any_commits(seed: int) -> None:
    rng = random.Random(seed)
    tokens = repetitive(rng, 160)
    drafter = SuffixDrafter()
    given = rng.randint(1, 30)
    drafter.prefill(tokens[:given])
    drafted = 0
    while given < len(tokens):
        tree = draft(drafter, tokens[given - 1])
        assert content(tree) == content(cold(tokens[:given]))
        drafted += len(tree) - 1
        step = rng.randint(1, 7)
        drafter.commit(tokens[given : given + step])
        given += len(tokens[given : given + step])
    assert drafted > 50


def test_a_new_request_forgets_the_last_one() -> None:
    drafter = SuffixDrafter()
    drafter.prefill([1, 2, 3, 1, 2, 3, 1, 2])
    assert len(draft(drafter, 2)) > 1
    drafter.prefill([7, 1, 2])
    assert len(draft(drafter, 2)) == 1


class CountingDrafter(SuffixDrafter):
    """Counts the tokens that it takes up."""

    added = 0

    def commit(self, tokens: Sequence[int]) -> None:
        self.added += len(tokens)
        super().commit(tokens)


@pytest.mark.parametrize("seed", range(8))
def test_a_next_request_leaves_the_state_of_a_fresh_drafter(seed: int) -> None:
    rng = random.Random(seed)
    system = repetitive(rng, 60)
    drafter = SuffixDrafter()
    for _ in range(8):
        prompt = system[: rng.randint(0, 60)] + repetitive(rng, rng.randint(1, 30))
        drafter.prefill(prompt)
        fresh = SuffixDrafter()
        fresh.prefill(prompt)
        # To the last entry: places that nobody refers to any more would stay in memory for ever.
        assert drafter._text.tokens == fresh._text.tokens
        assert drafter._text._places == fresh._text._places
        assert content(draft(drafter, prompt[-1])) == content(cold(prompt))
        drafter.commit(repetitive(rng, rng.randint(0, 20)))


def test_a_next_request_costs_only_what_it_does_not_share() -> None:
    drafter = CountingDrafter()
    system = repetitive(random.Random(9), 1000)
    drafter.prefill([*system, 7, 8, 9])
    drafter.commit([7, 8])
    added = []
    for prompt in ([*system, 7, 1], [*system, 7, 1], [1000], [*system, 7]):
        drafter.added = 0
        drafter.prefill(prompt)
        added.append(drafter.added)
    assert added == [1, 0, 1, 1001]


def test_drafting_leaves_no_trace() -> None:
    tokens = repetitive(random.Random(4), 80)
    drafter = SuffixDrafter()
    drafter.prefill(tokens)
    first = content(draft(drafter, tokens[-1]))
    for nodes in (1, 2, 7, 32):
        draft(drafter, tokens[-1], DraftLimits(nodes, 3))
    assert content(draft(drafter, tokens[-1])) == first
    # The target went another way than every guess.
    drafter.commit([99])
    drafter.commit(tokens[-2:])
    assert content(draft(drafter, tokens[-1])) == content(cold([*tokens, 99, *tokens[-2:]]))


@pytest.mark.parametrize("seed", range(12))
def test_every_path_of_a_draft_followed_the_context_before(seed: int) -> None:
    tokens = repetitive(random.Random(seed), 150)
    tree = cold(tokens)
    windows = {tuple(tokens[i:j]) for i in range(len(tokens)) for j in range(i + 2, min(i + 20, len(tokens)) + 1)}
    for node in range(1, len(tree)):
        guessed = [tree.tokens[n] for n in tree.path(node)[1:]]
        # The last token and the guesses stood side by side earlier in the text.
        assert tuple(tokens[-1:] + guessed) in windows


def test_the_first_guess_is_the_continuation() -> None:
    tree = cold([4, 5, 6, 7, 8, 9, 4, 5])
    assert tree.tokens == [5, 6, 7, 8, 9, 4, 5]
    assert tree.is_chain


def test_the_longest_match_wins_against_the_latest() -> None:
    #        -- 1 2 3 then 50 --        - 9 2 3 then 60 -
    tokens = [1, 2, 3, 50, 51, 7, 7, 8, 9, 2, 3, 60, 61, 1, 2, 3]
    tree = cold(tokens)
    first_level = {tree.tokens[node]: tree.confidences[node] for node in tree.children(0)}
    assert set(first_level) == {50, 60}
    assert first_level[50] > first_level[60]
    smallest = cold(tokens, DraftLimits(nodes=2, depth=16))
    assert smallest.tokens == [3, 50]


def test_a_single_token_is_looked_up_where_its_pair_is_new() -> None:
    tree = cold([5, 9, 8, 7, 5])
    assert tree.tokens[:4] == [5, 9, 8, 7]
    assert tree.is_chain


def test_agreeing_occurrences_are_trusted_more_than_split_ones() -> None:
    agreed = cold([1, 2, 5, 0, 1, 2, 5, 9, 1, 2])
    split = cold([1, 2, 5, 0, 1, 2, 6, 9, 1, 2])
    assert [agreed.tokens[node] for node in agreed.children(0)] == [5]
    assert {split.tokens[node] for node in split.children(0)} == {5, 6}
    assert agreed.confidences[1] > max(split.confidences[node] for node in split.children(0))


def test_a_longer_match_is_trusted_more() -> None:
    short = cold([8, 1, 2, 5, 7, 1, 2])
    long = cold([3, 4, 1, 2, 5, 7, 3, 4, 1, 2])
    assert short.tokens[1] == long.tokens[1] == 5
    assert long.confidences[1] > short.confidences[1]


@pytest.mark.parametrize("tokens", [[], [3], [3, 4], [1, 2, 3, 4, 5]])
def test_no_earlier_occurrence_means_no_draft(tokens: list[int]) -> None:
    drafter = SuffixDrafter()
    drafter.prefill(tokens)
    assert len(draft(drafter, tokens[-1] if tokens else 9)) == 1


def test_an_exhausted_budget_means_no_draft() -> None:
    tokens = [1, 2, 3] * 8
    assert len(cold(tokens, DraftLimits(nodes=1, depth=16))) == 1
    assert len(cold(tokens, DraftLimits(nodes=32, depth=0))) == 1


@pytest.mark.parametrize(("nodes", "depth"), [(2, 1), (5, 3), (16, 1), (32, 16), (8, 100)])
def test_limits_are_kept(nodes: int, depth: int) -> None:
    tree = cold(repetitive(random.Random(1), 200) + [0, 1] * 10, DraftLimits(nodes, depth))
    assert 1 < len(tree) <= nodes
    assert tree.max_depth <= depth


def test_old_occurrences_do_not_slow_a_draft() -> None:
    # A pair that stands everywhere: only its latest occurrences are looked at.
    filler = [token for number in range(100) for token in (1, 2, 10 + number)]
    tree = cold([*filler, 1, 2])
    guessed = {tree.tokens[node] for node in tree.children(0)}
    assert guessed <= {10 + number for number in range(100 - MAX_OCCURRENCES, 100)}


def test_the_longest_match_is_found_however_many_lie_after_it() -> None:
    # The pair (1, 2) stands 60 times; the one place that five tokens match is the oldest.
    filler = [token for number in range(60) for token in (1, 2, 100 + number)]
    tree = cold([30, 31, 32, 1, 2, 50, *filler, 30, 31, 32, 1, 2], DraftLimits(nodes=2, depth=16))
    assert tree.tokens == [2, 50]


# With the earlier answers of the batch.


def drafted_with(outputs: Outputs, tokens: Sequence[int], limits: DraftLimits = WIDE) -> TokenTree:
    drafter = SuffixDrafter()
    drafter.prefill(tokens)
    tree = TokenTree(tokens[-1])
    drafter.draft(tree, limits, DraftContext(outputs=outputs))
    return tree


def outputs_of(*answers: tuple[list[int], list[int]]) -> Outputs:
    outputs = Outputs()
    for prompt, answer in answers:
        outputs.add(prompt, answer)
    return outputs


def test_an_earlier_answer_is_guessed_from_its_middle() -> None:
    outputs = outputs_of(([1, 2], [20, 21, 22, 23, 24, 25]))
    assert drafted_with(outputs, [7, 8, 21, 22]).tokens == [22, 23, 24, 25]
    assert len(drafted_with(Outputs(), [7, 8, 21, 22])) == 1


def test_the_first_tokens_of_an_answer_are_guessed_where_the_prompt_ends_alike() -> None:
    outputs = outputs_of(([1, 2, 90, 91], [20, 21, 22]), ([3, 4, 90, 91], [20, 23, 24]))
    tree = drafted_with(outputs, [5, 6, 7, 90, 91])
    assert [tree.tokens[node] for node in tree.children(0)] == [20]
    assert {tree.tokens[node] for node in tree.children(1)} == {21, 23}


def test_prompts_are_not_guessed_from() -> None:
    outputs = outputs_of(([1, 2, 3, 4], [20]))
    assert len(drafted_with(outputs, [7, 1, 2])) == 1


def test_shares_follow_how_often_an_answer_was_given() -> None:
    answers = [([9], [20, 21])] * 3 + [([9], [20, 22])]
    tree = drafted_with(outputs_of(*answers), [9, 20])
    shares = {tree.tokens[node]: tree.confidences[node] for node in tree.children(0)}
    assert shares[21] == pytest.approx(3 * shares[22])


def test_an_answer_that_ended_votes_against_going_on() -> None:
    going_on = drafted_with(outputs_of(([9], [20, 21])), [9, 20])
    split = drafted_with(outputs_of(([9], [20, 21]), ([9], [20])), [9, 20])
    assert going_on.tokens == split.tokens == [20, 21]
    assert split.confidences[1] == pytest.approx(going_on.confidences[1] / 2)
    assert len(drafted_with(outputs_of(([9], [20]), ([8], [21, 22])), [9, 20])) == 1


def test_the_text_and_the_answers_vote_together() -> None:
    tree = drafted_with(outputs_of(([9], [20, 21])), [20, 22, 9, 20])
    # The answer matches two tokens, the text one.
    shares = {tree.tokens[node]: tree.confidences[node] for node in tree.children(0)}
    assert set(shares) == {21, 22}
    assert shares[21] > shares[22]


@pytest.mark.parametrize("seed", range(6))
def test_a_draft_is_a_function_of_answers_and_tokens(seed: int) -> None:
    rng = random.Random(seed)
    answers = [(repetitive(rng, 10), repetitive(rng, 40)) for _ in range(5)]
    outputs, tokens = outputs_of(*answers), repetitive(rng, 100)
    drafter = SuffixDrafter()
    drafter.prefill(repetitive(rng, 30))
    drafter.prefill(tokens[:20])
    for given in range(20, 100, 8):
        tree = TokenTree(tokens[given - 1])
        drafter.draft(tree, WIDE, DraftContext(outputs=outputs))
        assert content(tree) == content(drafted_with(outputs_of(*answers), tokens[:given]))
        drafter.commit(tokens[given : given + 8])


def test_the_root_must_be_the_last_committed_token() -> None:
    drafter = SuffixDrafter()
    drafter.prefill([1, 2])
    with pytest.raises(AssertionError):
        draft(drafter, 7)


def test_the_end_of_a_text_is_not_guessed_where_it_may_not_come_yet() -> None:
    """Token 5 ends a text: it followed 1, 2 twice, and 6 did once."""
    tokens = [1, 2, 5, 0, 1, 2, 6, 9, 1, 2, 5, 8, 1, 2]
    limits = DraftLimits(nodes=32, depth=1)
    for completed, expected in ((0, {6}), (2, {6}), (3, {5, 6})):
        history = History(tokens[: len(tokens) - completed], tokens[len(tokens) - completed :])
        guide = Guide(Sampling(min_tokens=3, suppressed=frozenset({5})), history)
        tree = guided(tokens, guide, limits=limits)
        assert set(tree.tokens[1:]) == expected
    for at_least, chain in ((1, [8, 5, 1, 7]), (2, [8])):
        guide = Guide(Sampling(min_tokens=at_least, suppressed=frozenset({5})), History([7, 8, 5, 1, 7], ()))
        assert guided([7, 8, 5, 1, 7], guide).tokens[1:] == chain


# With the noise of a sampled text.


def guided(
    tokens: Sequence[int], guide: Guide, outputs: Outputs | None = None, limits: DraftLimits = WIDE
) -> TokenTree:
    drafter = SuffixDrafter()
    drafter.prefill(tokens)
    tree = TokenTree(tokens[-1])
    drafter.draft(tree, limits, DraftContext(position=len(tokens) - 1, guide=guide, outputs=outputs))
    return tree


def sampled(seed: int, tokens: Sequence[int], noise: bool = True) -> Guide:
    return Guide(Sampling(temperature=0.7, seed=seed), History(tokens, ()), noise)


def test_without_noise_a_sampled_draft_is_the_greedy_one() -> None:
    for seed in range(6):
        tokens = repetitive(random.Random(seed), 150)
        assert content(guided(tokens, sampled(seed, tokens, noise=False))) == content(cold(tokens))


def test_where_one_continuation_is_known_the_noise_says_nothing() -> None:
    tokens = [4, 5, 6, 7, 8, 9, 4, 5]
    for seed in range(20):
        assert content(guided(tokens, sampled(seed, tokens))) == content(cold(tokens))


CONTEXT = list(range(100, 124))


@pytest.mark.parametrize(
    ("probabilities", "by_shares", "by_noise"), [([0.4, 0.3, 0.2, 0.1], 0.37, 0.82), ([0.9, 0.1], 0.90, 0.95)]
)
def test_the_noise_tells_which_of_the_earlier_answers_is_drawn(
    probabilities: list[float], by_shares: float, by_noise: float
) -> None:
    """24 answers to one prompt began with a token of known probabilities; this answer is drawn from the same."""
    rng, rounds = np.random.default_rng(1), 500
    tokens = np.arange(7, 7 + len(probabilities))
    hits, confidences = {True: 0, False: 0}, []
    for seed in range(rounds):
        outputs = outputs_of(*((CONTEXT, [int(token)]) for token in rng.choice(tokens, 24, p=probabilities)))
        noise = gumbel_noise(seed, len(CONTEXT), tokens)
        drawn = tokens[np.argmax(np.log(probabilities) + noise)]
        for by in (True, False):
            tree = guided(CONTEXT, sampled(seed, CONTEXT, by), outputs, DraftLimits(nodes=2, depth=1))
            hits[by] += tree.tokens[1] == drawn
            if by:
                confidences.append((tree.confidences[1], tree.tokens[1] == drawn))
    # Three standard deviations of 500 rounds are 0.06 at most.
    assert hits[False] / rounds == pytest.approx(by_shares, abs=0.06)
    assert hits[True] / rounds == pytest.approx(by_noise, abs=0.06)
    # The more confident half of the guesses is right more often, and confidence does not promise too much.
    confidences.sort()
    lower, upper = confidences[: rounds // 2], confidences[rounds // 2 :]
    assert sum(right for _, right in upper) > sum(right for _, right in lower)
    assert sum(confidence for confidence, _ in confidences) < hits[True] + 0.03 * rounds


def test_the_noise_is_that_of_the_position_of_each_guess() -> None:
    answers = [[1, 2, 3], [1, 2, 4], [1, 5, 6], [7, 8, 9]] * 6
    reliability = 1 - 0.8 * 0.8**24
    splits = 0
    for seed in range(30):
        tree = guided(CONTEXT, sampled(seed, CONTEXT), outputs_of(*((CONTEXT, answer) for answer in answers)))
        for node in range(len(tree)):
            path = [tree.tokens[one] for one in tree.path(node)[1:]]
            depth = len(path)
            following = [answer[depth] for answer in answers if answer[:depth] == path and len(answer) > depth]
            votes = {token: following.count(token) for token in set(following)}
            trust = reliability * len(following) / (len(following) + 2)
            noise = gumbel_noise(seed, len(CONTEXT) + depth, np.array(list(votes), dtype=np.int64))
            powers = {token: votes[token] * np.exp(trust * one) for token, one in zip(votes, noise, strict=True)}
            for child in tree.children(node):
                odds = powers[tree.tokens[child]] / sum(powers.values())
                assert tree.confidences[child] == pytest.approx(reliability * odds)
            splits += len(votes) > 1
    assert splits > 60
