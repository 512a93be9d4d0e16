"""Acceptance: the walk down a verified tree.

Lossless: at every visited node the target's own draw is taken, exactly as plain decoding would take it, and the walk
goes on while a child carries the drawn token. So the emitted tokens do not depend on the draft at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.engine.tree import TokenTree


@dataclass(frozen=True)
class Walk:
    """`path`: accepted nodes, root first. `tokens`: what the pass emits; the last one is the next pending token."""

    path: list[int]
    tokens: list[int]


def walk(tree: TokenTree, draw: Callable[[int, Sequence[int]], int], ends: Callable[[int], bool]) -> Walk:
    """Walk down `tree`.

    draw(node, emitted) is the target's choice after `node`, with the tokens that this walk has emitted before it;
    ends(token) says that the text ends with `token`: nothing is accepted past it, and it never enters the cache.
    """
    path, emitted = [0], list[int]()
    while True:
        token = draw(path[-1], emitted)
        emitted.append(token)
        child = None if ends(token) else tree.child(path[-1], token)
        if child is None:
            return Walk(path, emitted)
        path.append(child)
