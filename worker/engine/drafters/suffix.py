"""The suffix drafter: what followed the last tokens earlier in the request, and in earlier answers of its batch.

After SuffixDecoding (arXiv:2411.04975): earlier occurrences of the context's suffix vote for their continuations, which
are expanded best first into a tree. The text of the request and the answers of the batch vote together; the longer an
occurrence matches, the more its vote counts. Where votes are split and the text is sampled, the noise of the draw has a
say too: see `Guide.elected`.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Iterable, Sequence

from worker.engine.drafters.guide import Guide
from worker.engine.drafters.protocol import DraftContext, DraftLimits, TextDrafter
from worker.engine.drafters.sorted_places import DEPTH, NONE, Occurrence, SortedPlaces
from worker.engine.shared_prefix import shared_prefix
from worker.engine.tree import TokenTree

# Of the request's text, and as many of the batch's answers.
MAX_OCCURRENCES = 24
MIN_VALUE = 0.02
# Votes that shares have to outweigh before noise on them says much.
PRIOR_VOTES = 2.0


def reliability(match: int) -> float:
    """A first guess at the probability that text goes on as it did after `match` equal tokens.

    Only its order matters in the long run: calibration replaces the scale by what was observed.
    """
    return _RELIABILITY[min(match, DEPTH)]


_RELIABILITY = [1 - 0.8 * 0.8**match for match in range(DEPTH + 1)]


class SuffixDrafter(TextDrafter):
    """Guesses from the request's own tokens and, where the context has them, from the outputs of its batch."""

    name = "suffix"

    def __init__(self) -> None:
        self._text = SortedPlaces()
        self._text.begin()

    def prefill(self, prompt: Sequence[int]) -> None:
        """What the tokens of before share with `prompt` stays in order: a long shared prefix costs a comparison."""
        shared = shared_prefix(self._text.tokens[DEPTH:], prompt)
        self._text.keep(0, DEPTH + shared)
        self.commit(prompt[shared:])

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        last = self._last_tokens()
        assert not last or tree.tokens[0] == last[-1], "the root is the last committed token"
        occurrences = self._text.nearest(last, MAX_OCCURRENCES)
        if context.outputs is not None:
            occurrences += context.outputs.nearest(last, MAX_OCCURRENCES)
            occurrences.sort(key=lambda one: one.match, reverse=True)
        _expand(tree, limits, occurrences, context.guide)

    def _last_tokens(self) -> array[int]:
        tokens = self._text.tokens
        return tokens[max(DEPTH, len(tokens) - DEPTH) :]


def _expand(tree: TokenTree, limits: DraftLimits, occurrences: list[Occurrence], guide: Guide) -> None:
    """Add what followed `occurrences`, which come longest match first, the most promising node first."""
    order = itertools.count()
    frontier = [(-1.0, next(order), 0, NONE, 1.0, occurrences)]
    while frontier and len(tree) < limits.nodes:
        value, _, parent, token, confidence, voters = heapq.heappop(frontier)
        node = 0 if token == NONE else tree.add(parent, token, confidence)
        depth = tree.depths[node]
        if depth == limits.depth:
            continue
        for child, odds, group in _election(voters, depth, guide):
            confidence = odds * reliability(group[0].match + depth)
            if -value * confidence >= MIN_VALUE:
                heapq.heappush(frontier, (value * confidence, next(order), node, child, confidence, group))


def _election(occurrences: list[Occurrence], depth: int, guide: Guide) -> list[tuple[int, float, list[Occurrence]]]:
    """Continuations at `depth` tokens after the match: token, its odds among them, who voted for it.

    An answer that had ended by then votes against them all. A match counts twice as much as one a token shorter. Votes
    for what cannot be drawn there are void.
    """
    voters: dict[int, list[Occurrence]] = {}
    for one in occurrences:
        if one.start + depth < len(one.tokens):
            voters.setdefault(one.tokens[one.start + depth], []).append(one)
    for token in guide.barred(depth + 1):
        voters.pop(token, None)
    if len(voters) == 1:
        return [(token, 1.0, group) for token, group in voters.items() if token != NONE]
    weights = {token: sum(1 << one.match for one in group) for token, group in voters.items()}
    total = sum(weights.values())
    weights.pop(NONE, None)
    odds: Iterable[float] = [weight / total for weight in weights.values()]
    if guide.mode == "noise" and len(weights) > 1:
        trust = _trust(max(group[0].match for group in voters.values()), depth, total)
        odds = guide.elected(list(weights), list(odds), depth + 1, trust)
    return [(token, chance, voters[token]) for token, chance in zip(weights, odds, strict=True)]


def _trust(match: int, depth: int, total: int) -> float:
    """How far shares of a vote are the probabilities that this very draw goes by.

    As far as the text is the one that was followed before, and the more votes there are, counted in those of the
    longest match. After a short match the shares are those of many different contexts, and all of the noise on top of
    them would mislead.
    """
    votes = total / (1 << match)
    return reliability(match + depth) * votes / (votes + PRIOR_VOTES)
