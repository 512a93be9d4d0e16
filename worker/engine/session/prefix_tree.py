"""A tree of prefixes: what caches held after earlier prompts, each shared prefix once, within a number of bytes.

A radix tree over token ids. An edge has the rows of its own tokens; the node at its end may have the states that layers
were in after it:

    root ── system prompt ──┬── question 1 ── states
                 states     └── question 2 ── states

A cache is restored from the rows on the way and the states at the end: where there are states, or anywhere when the
model has row layers only. Room is made by dropping the leaf that was least recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from worker.engine.session.layers import restored, row_layers, state_layers
from worker.engine.session.rows import Rows, buffers, bytes_of, cut
from worker.engine.session.states import detached, state_bytes, states_of
from worker.engine.shared_prefix import shared_prefix


class Node:
    """The edge that leads here from `parent`, whose tokens are the positions [start, end), and what is kept of it.

    rows: of each row layer. states: of each other layer at `end`; None where nobody kept them, empty where the model
    has row layers only.
    """

    def __init__(self, parent: Node | None, start: int, tokens: Sequence[int], rows: list[Rows]) -> None:
        self.parent, self.start, self.tokens = parent, start, list(tokens)
        self.rows = rows
        self.states: list[Any] | None = None
        self.state_bytes = 0
        self.children: dict[int, Node] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def bytes_up_to(self, position: int) -> int:
        """Bytes of all that is kept of the edge up to `position`."""
        rows = sum(bytes_of(rows, min(position, self.end) - self.start) for rows in self.rows)
        return rows + (self.state_bytes if self.end <= position else 0)

    def rows_up_to(self, position: int) -> list[Rows]:
        """The rows of each row layer up to `position`."""
        if self.end <= position:
            return self.rows
        return [[array[..., : position - self.start, :] for array in rows] for rows in self.rows]

    def restorable(self, position: int) -> bool:
        """Whether a cache can be restored at `position`, which is on this edge."""
        return self.states is not None and (position == self.end or not self.states)


class PrefixTree:
    """Snapshots of one model's caches, in at most `budget` bytes of arrays. A budget of 0 keeps nothing."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._root = Node(None, 0, (), [])
        # Least recently used first, and every node before its parent, so that a leaf comes first.
        self._order: OrderedDict[Node, None] = OrderedDict()

    def clear(self) -> None:
        """Forget everything."""
        for node in (self._root, *self._order):
            node.children.clear()  # parents and children refer to each other: this frees the memory now
        self._order.clear()
        self.nbytes = 0

    def known(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the start on, an earlier prompt had too; asking is using it."""
        path, length = self._match(tokens)
        self._touch([node for node in path if node.end <= length])
        return length

    def usable(self, tokens: Sequence[int]) -> int:
        """The longest prefix of `tokens` that a cache can be restored at."""
        path, length = self._match(tokens)
        positions = ((node, min(node.end, length)) for node in reversed(path))
        return next((position for node, position in positions if node.restorable(position)), 0)

    def restore(self, tokens: Sequence[int], fresh: Sequence[Any], room: int) -> list[Any]:
        """Layers that hold exactly `tokens`, which have to be usable, made of `fresh` ones.

        What is written into them does not reach the tree. room: tokens that rows are allocated for.
        """
        path, length = self._match(tokens)
        assert length == len(tokens)
        assert path[-1].restorable(length)
        self._touch(path)
        rows = zip(*(node.rows_up_to(length) for node in path[1:]), strict=True)
        layers = restored(fresh, rows, iter(detached(path[-1].states or ())), length, room)
        mx.eval([buffers(layer) for layer in row_layers(layers)])
        return layers

    def insert(self, tokens: Sequence[int], layers: Sequence[Any]) -> None:
        """Keep what `layers` hold, which is exactly `tokens`.

        Nothing is kept when it does not fit the budget, or when a layer's rows are not one per token.
        """
        try:
            self._insert(tokens, layers)
        except BaseException:
            # A time limit or Ctrl-C can strike anywhere, also in the middle of a split.
            self.clear()
            raise

    def _insert(self, tokens: Sequence[int], layers: Sequence[Any]) -> None:
        path, length = self._match(tokens)
        self._touch(path)
        if length == len(tokens) and path[-1].restorable(length):
            return
        if any(layer.offset not in (0, len(tokens)) for layer in row_layers(layers)):
            return
        rows = [buffers(layer) for layer in row_layers(layers)]
        states = state_layers(layers)
        bytes_of_states = state_bytes(states)
        needed = sum(bytes_of(own, len(tokens) - length) for own in rows) + bytes_of_states
        if sum(node.bytes_up_to(length) for node in path) + needed > self.budget:
            return
        path[-1] = self._split(path[-1], length)
        self._touch(path)
        while self.nbytes + needed > self.budget:
            self._evict()
        if length < len(tokens):
            new_rows = [cut(own, length, len(tokens)) for own in rows]
            mx.eval(new_rows)
            path.append(self._append(path[-1], tokens[length:], new_rows))
            self._touch(path)
        path[-1].states, path[-1].state_bytes = states_of(states), bytes_of_states
        self.nbytes += needed

    def _match(self, tokens: Sequence[int]) -> tuple[list[Node], int]:
        """The nodes whose edges lead along `tokens`, the root first, and how far; the last edge may end behind that."""
        path, length = [self._root], 0
        while length == path[-1].end and length < len(tokens):
            child = path[-1].children.get(tokens[length])
            if child is None:
                break
            length += shared_prefix(child.tokens, tokens[length : child.end])
            path.append(child)
        return path, length

    def _touch(self, path: Sequence[Node]) -> None:
        for node in reversed(path[1:]):
            self._order[node] = None
            self._order.move_to_end(node)

    def _append(self, parent: Node, tokens: Sequence[int], rows: list[Rows]) -> Node:
        node = parent.children[tokens[0]] = Node(parent, parent.end, tokens, rows)
        return node

    def _split(self, node: Node, position: int) -> Node:
        """The node that ends at `position`, which is on the edge of `node`; what lies behind stays with `node`."""
        if node.end == position:
            return node
        assert node.parent is not None
        size = position - node.start
        upper = self._append(node.parent, node.tokens[:size], [])
        for number, rows in enumerate(node.rows):
            first, second = cut(rows, 0, size), cut(rows, size, len(node.tokens))
            mx.eval(first, second)
            upper.rows.append(first)
            node.rows[number] = second  # layer by layer, so that only one of them is in memory twice
        # States belong to the end; without any, rows can be restored anywhere, here as well.
        upper.states = None if node.states else node.states
        node.parent, node.start, node.tokens = upper, position, node.tokens[size:]
        upper.children[node.tokens[0]] = node
        return upper

    def _evict(self) -> None:
        """Drop the least recently used leaf."""
        node = next(node for node in self._order if not node.children)
        assert node.parent is not None
        del self._order[node]
        del node.parent.children[node.tokens[0]]
        self.nbytes -= node.bytes_up_to(node.end)
