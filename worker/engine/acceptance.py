"""Acceptance: the walk down a verified tree.

Lossless: at every visited node the target's own draw is taken, exactly as plain decoding would take it, and the walk
goes on while a child carries the drawn token. So the emitted tokens do not depend on the draft at all.

Relaxed, where a request asks for it: a draw that misses every child is overruled by a child that the target might have
drawn too, when enough tokens follow it. The text then depends on the draft, and has another distribution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from worker.engine.completion import Origin
from worker.engine.sampling import NoTokenLeft
from worker.engine.tree import TokenTree

Draw = Callable[[int, Sequence[int]], int]
"""draw(node, emitted): the target's choice after `node`, with the tokens that the walk has emitted before it."""
Ends = Callable[[int], bool]
"""ends(token): the text ends with `token`; nothing is accepted past it, and it never enters the cache."""
Odds = Callable[[int, Sequence[int], Sequence[int]], tuple[list[float], float]]
"""odds(node, emitted, tokens): the probability of each of `tokens` after `node`, and that of all others together."""


@dataclass(frozen=True)
class Walk:
    """`path`: accepted nodes, root first. `tokens`: what the pass emits; the last one is the next pending token.

    `forced`: those of the path that were accepted against the draw.
    """

    path: list[int]
    tokens: list[int]
    forced: list[int] = field(default_factory=list)

    @property
    def origins(self) -> list[Origin]:
        """Of each of `tokens`."""
        return [*("forced" if node in self.forced else "accepted" for node in self.path[1:]), "drawn"]


def walk(tree: TokenTree, draw: Draw, ends: Ends) -> Walk:
    """The lossless walk down `tree`."""
    return _follow_draws(tree, 0, [], draw, ends)


def relaxed_walk(tree: TokenTree, draw: Draw, ends: Ends, odds: Odds, theta: float) -> Walk:
    """The walk by the rule `ratio`: at a miss, take the child with the longest lossless continuation if it is worth it.

    It is when (1 - P(children)) / gain <= theta. 1 - P(children), the probability of a miss, is how much of the
    target's distribution after this node is moved; gain is the number of tokens accepted for it. A draw that ends the
    text is never overruled, and no end is forced on it.
    """
    walked = _follow_draws(tree, 0, [], draw, ends)
    while forced := _overruled(tree, walked, draw, ends, odds, theta):
        walked = forced
    return walked


def _follow_draws(tree: TokenTree, start: int, before: Sequence[int], draw: Draw, ends: Ends) -> Walk:
    """From `start` on, with the tokens `before` emitted on the way to it."""
    path, emitted = [start], list[int]()
    while True:
        token = draw(path[-1], [*before, *emitted])
        emitted.append(token)
        child = None if ends(token) else tree.child(path[-1], token)
        if child is None:
            return Walk(path, emitted)
        path.append(child)


def _overruled(tree: TokenTree, walked: Walk, draw: Draw, ends: Ends, odds: Odds, theta: float) -> Walk | None:
    """`walked`, whose last draw has missed, gone on with a child in its place; None where the draw stands."""
    node, before, drawn = walked.path[-1], walked.tokens[:-1], walked.tokens[-1]
    children = tree.children(node)
    if ends(drawn) or not children:
        return None
    chances, missed = odds(node, before, [tree.tokens[child] for child in children])
    if missed > theta * (tree.max_depth - tree.depths[node]):
        return None
    found: list[tuple[int, float, Walk]] = []
    for child, chance in zip(children, chances, strict=True):
        token = tree.tokens[child]
        if chance > 0 and not ends(token) and (beyond := _beyond(tree, child, [*before, token], draw, ends)):
            found.append((len(beyond.path), chance, beyond))
    gain, _, beyond = max(found, key=lambda one: one[:2], default=(0, 0.0, walked))
    if missed > theta * gain or not found:
        return None
    forced = beyond.path[0]
    tokens = [*before, tree.tokens[forced], *beyond.tokens]
    return Walk([*walked.path, *beyond.path], tokens, [*walked.forced, forced])


def _beyond(tree: TokenTree, child: int, before: Sequence[int], draw: Draw, ends: Ends) -> Walk | None:
    """The lossless walk from `child` on; None where it comes to a node after which no token can be drawn."""
    try:
        return _follow_draws(tree, child, before, draw, ends)
    except NoTokenLeft:
        return None
