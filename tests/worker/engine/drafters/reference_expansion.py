"""What an expansion has to draft, path by path and without any early end, as the reference of model-based drafters."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree

Path = tuple[int, ...]
LogProbs = Callable[[Path], npt.NDArray[np.floating]]
"""logprobs(path): of all tokens [V], after the tokens of `path` below the root."""


def expected_values(logprobs: LogProbs, shape: Expansion, limits: DraftLimits) -> dict[Path, float]:
    """Path -> product of its probabilities, of the nodes that a greedy draft has to consist of."""
    values: dict[Path, float] = {(): 1.0}
    followed: list[Path] = [()]
    for _ in range(min(shape.depth, limits.depth)):
        fresh: dict[Path, float] = {}
        for path in followed:
            row = logprobs(path)
            for token in np.argsort(-row, kind="stable")[: shape.children].tolist():
                value = values[path] * float(np.exp(row[token]))
                if value >= shape.min_value:
                    fresh[(*path, token)] = value
        values |= fresh
        followed = sorted(fresh, key=lambda path: -fresh[path])[: shape.beam]
    del values[()]
    kept = sorted(values, key=lambda path: -values[path])[: limits.nodes - 1]
    return {path: values[path] for path in kept}


def values_of(tree: TokenTree) -> dict[Path, float]:
    """Path -> product of the confidences, of every drafted node."""
    values: dict[Path, float] = {}
    for node in range(1, len(tree)):
        path = tree.path(node)[1:]
        values[tuple(tree.tokens[one] for one in path)] = float(np.prod([tree.confidences[one] for one in path]))
    return values


def assert_expected(tree: TokenTree, expected: dict[Path, float], tolerance: float = 1e-4) -> None:
    """The tree has exactly the expected nodes, with their values."""
    got = values_of(tree)
    assert set(got) == set(expected)
    for path, value in expected.items():
        np.testing.assert_allclose(got[path], value, rtol=tolerance)
