"""The walk down a verified tree, by hand."""

from collections.abc import Sequence

import pytest

from worker.engine.acceptance import walk
from worker.engine.tree import TokenTree


def tree() -> TokenTree:
    """Node 0(1); its children 1(5) and 2(6); below node 2: 3(5) and 4(7); below node 4: 5(8)."""
    drafted = TokenTree(1)
    drafted.add(0, 5, 0.5)
    six = drafted.add(0, 6, 0.5)
    drafted.add(six, 5, 0.5)
    seven = drafted.add(six, 7, 0.5)
    drafted.add(seven, 8, 0.5)
    return drafted


@pytest.mark.parametrize(
    ("draws", "path", "tokens"),
    [
        ({0: 9}, [0], [9]),
        ({0: 5, 1: 6}, [0, 1], [5, 6]),
        ({0: 6, 2: 7, 4: 8, 5: 3}, [0, 2, 4, 5], [6, 7, 8, 3]),
        ({0: 6, 2: 8}, [0, 2], [6, 8]),
    ],
)
def test_the_walk_follows_the_draws(draws: dict[int, int], path: list[int], tokens: list[int]) -> None:
    asked: list[tuple[int, list[int]]] = []

    def draw(node: int, emitted: Sequence[int]) -> int:
        asked.append((node, list(emitted)))
        return draws[node]

    walked = walk(tree(), draw, lambda _: False)
    assert (walked.path, walked.tokens) == (path, tokens)
    # One draw per emitted token, each told what the walk has emitted before it.
    assert asked == [(node, tokens[:count]) for count, node in enumerate(path)]


def test_nothing_is_accepted_from_an_end_token_on() -> None:
    walked = walk(tree(), lambda node, _: {0: 6, 2: 7}[node], lambda token: token == 7)
    assert (walked.path, walked.tokens) == ([0, 2], [6, 7])


def test_a_root_alone_is_plain_decoding() -> None:
    walked = walk(TokenTree(1), lambda *_: 4, lambda _: False)
    assert (walked.path, walked.tokens) == ([0], [4])
