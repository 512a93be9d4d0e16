"""The suffix drafter: what followed the last tokens earlier in the prompt or the output.

After SuffixDecoding (arXiv:2411.04975): earlier occurrences of the context's suffix vote for their continuations, which
are expanded best first into a tree. Here an index of single tokens and pairs finds the occurrences and the match is
extended backwards, so nothing has to be maintained but one dictionary.
"""

import heapq
import itertools
from collections.abc import Sequence

from worker.engine.drafters.protocol import DraftContext, DraftLimits, TextDrafter
from worker.engine.shared_prefix import shared_prefix
from worker.engine.tree import TokenTree

# Pairs are looked up first: of a frequent token the latest occurrences need not be those that match longest.
NGRAMS = (2, 1)
MAX_MATCH = 24
MAX_OCCURRENCES = 24
MIN_VALUE = 0.02
# How much more an occurrence that matches one token further counts in the vote.
VOTE_BASE = 1.5

Occurrence = tuple[int, int]
"""Where the continuation starts, and how many tokens before it equal the end of the context."""


def reliability(match: int) -> float:
    """A first guess at the probability that text goes on as it did after `match` equal tokens.

    Only its order matters in the long run: calibration replaces the scale by what was observed.
    """
    return _RELIABILITY[min(match, MAX_MATCH)]


_RELIABILITY = [1 - 0.8 * 0.8**match for match in range(MAX_MATCH + 1)]
_VOTES = [VOTE_BASE**match for match in range(MAX_MATCH + 1)]


class SuffixDrafter(TextDrafter):
    """Guesses from the request's own tokens."""

    name = "suffix"

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def prefill(self, prompt: Sequence[int]) -> None:
        """What the tokens of before share with `prompt` stays indexed: a long shared prefix costs a comparison."""
        shared = shared_prefix(self._tokens, prompt)
        self._go_back(shared)
        self.commit(prompt[shared:])

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            for ngram in self._last_ngrams():
                self._ends.setdefault(ngram, []).append(len(self._tokens))

    def _go_back(self, length: int) -> None:
        """Forget the last tokens until `length` are left."""
        while len(self._tokens) > length:
            for ngram in self._last_ngrams():
                ends = self._ends[ngram]
                ends.pop()
                if not ends:
                    del self._ends[ngram]
            self._tokens.pop()

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        assert not self._tokens or tree.tokens[0] == self._tokens[-1], "the root is the last committed token"
        order = itertools.count()
        frontier = [(-1.0, next(order), 0, -1, 1.0, self._occurrences())]
        while frontier and len(tree) < limits.nodes:
            value, _, parent, token, confidence, occurrences = heapq.heappop(frontier)
            node = 0 if token < 0 else tree.add(parent, token, confidence)
            depth = tree.depths[node]
            if depth == limits.depth:
                continue
            for child, share, voters in self._votes(occurrences, depth):
                confidence = share * reliability(max(match for _, match in voters) + depth)
                if -value * confidence >= MIN_VALUE:
                    heapq.heappush(frontier, (value * confidence, next(order), node, child, confidence, voters))

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        return [tuple(self._tokens[-size:]) for size in NGRAMS if len(self._tokens) >= size]

    def _occurrences(self) -> list[Occurrence]:
        """The latest earlier places where the context's last tokens stood, each with the length of its match."""
        for ngram in self._last_ngrams():
            ends = self._ends[ngram][-MAX_OCCURRENCES - 1 : -1]
            if ends:
                return [(end, self._match_length(end, len(ngram))) for end in ends]
        return []

    def _match_length(self, end: int, length: int) -> int:
        tokens, last = self._tokens, len(self._tokens)
        while length < MAX_MATCH and end - length > 0 and tokens[end - length - 1] == tokens[last - length - 1]:
            length += 1
        return length

    def _votes(self, occurrences: list[Occurrence], depth: int) -> list[tuple[int, float, list[Occurrence]]]:
        """Continuations at `depth` tokens after the match: token, its share of the vote, who voted for it."""
        voters: dict[int, list[Occurrence]] = {}
        for start, match in occurrences:
            if start + depth < len(self._tokens):
                voters.setdefault(self._tokens[start + depth], []).append((start, match))
        if len(voters) == 1:
            return [(token, 1.0, group) for token, group in voters.items()]
        weights = {token: sum(_VOTES[match] for _, match in group) for token, group in voters.items()}
        total = sum(weights.values())
        return [(token, weights[token] / total, group) for token, group in voters.items()]
