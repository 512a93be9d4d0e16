"""TokenTree: guesses for the next tokens, as a tree that the target verifies in one pass."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

SILENT = 16
PROPOSERS = (1 << SILENT) - 1


class TokenTree:
    """Nodes in topological order (`parents[i] < i`); node 0 is the pending token.

    The pending token is chosen but not yet in the cache, so a pass always commits node 0. Siblings have different
    tokens: `add` merges equal ones. `confidences[i]` is the drafter's own estimate that node i is accepted when its
    parent is; `values[i]` the calibrated probability that node i is accepted, never above the value of the parent;
    `sources[i]` the bits of the drafters that proposed it and, from bit SILENT on, of those that were asked as well and
    did not. `passes`: of its drafter that the tree took, where it grew level by level.
    """

    def __init__(self, pending: int) -> None:
        self.tokens = [pending]
        self.parents = [-1]
        self.depths = [0]
        self.confidences = [1.0]
        self.values = [1.0]
        self.sources = [0]
        self._children: list[dict[int, int]] = [{}]
        self.passes = 1

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, confidence: float, source: int = 1) -> int:
        """Add (or find) the child of `parent` with `token`; returns its node. The larger confidence wins."""
        assert 0 <= parent < len(self)
        assert 0 <= confidence <= 1
        node = self._children[parent].get(token)
        if node is None:
            node = len(self)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            self.confidences.append(confidence)
            self.values.append(self.values[parent] * confidence)
            self.sources.append(0)
            self._children.append({})
            self._children[parent][token] = node
        elif confidence > self.confidences[node]:
            self.confidences[node] = confidence
            self.values[node] = self.values[parent] * confidence
        self.sources[node] |= source
        return node

    def merge(self, drafts: Mapping[int, "TokenTree"]) -> None:
        """Add the nodes of `drafts` below the same root, by the bit of the drafter that made each.

        The same token after the same parent is one node, whoever proposed it. It takes the largest of the confidences.
        """
        for bit, draft in drafts.items():
            places = [0]
            for node in range(1, len(draft)):
                parent = places[draft.parents[node]]
                places.append(self.add(parent, draft.tokens[node], draft.confidences[node], bit))
        asked = sum(drafts)
        for node in range(1, len(self)):
            self.sources[node] |= (asked & ~self.sources[node]) << SILENT

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`."""
        return self._children[node].get(token)

    def children(self, node: int) -> Sequence[int]:
        return list(self._children[node].values())

    @property
    def is_chain(self) -> bool:
        """Whether every node is the only child of the one before it: positions are then consecutive."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def max_depth(self) -> int:
        return max(self.depths)

    def ancestors(self) -> npt.NDArray[np.bool_]:
        """[N, N] booleans: entry (i, j) says that node j is node i or above it."""
        matrix = np.zeros((len(self), len(self)), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                matrix[node] = matrix[parent]
            matrix[node, node] = True
        return matrix

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def pruned(self, keep: Sequence[int]) -> "TokenTree":
        """The subtree of the nodes in `keep`, likeliest chain first.

        `keep` holds the parent of each of its nodes. Depth-first order with the likeliest child first makes the usual
        accepted path a prefix of the rows, and committing such a path moves no data.
        """
        kept = set(keep)
        assert 0 in kept
        tree = TokenTree(self.tokens[0])
        tree.passes = self.passes
        stack = [(child, 0) for child in self._by_value(0, kept)]
        while stack:
            node, parent = stack.pop()
            new = tree.add(parent, self.tokens[node], self.confidences[node], self.sources[node])
            tree.values[new] = self.values[node]
            stack.extend((child, new) for child in self._by_value(node, kept))
        assert len(tree) == len(kept)
        return tree

    def _by_value(self, node: int, kept: set[int]) -> list[int]:
        return sorted((c for c in self.children(node) if c in kept), key=lambda c: self.values[c])
