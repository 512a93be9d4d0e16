"""Random calls of the gated delta rule over trees, and what they must give: float64, token by token, path by path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Factors that a product of gates must survive: the one that forgets, nearly that, and those of a usual model.
GATES = (0.0, 1e-6, 0.3, 0.9, 0.999, 1.0)


@dataclass(frozen=True)
class Case:
    """Widths, heads and types of a call. by_channel: a gate per key channel."""

    parents: tuple[int, ...]
    key_width: int
    value_width: int = 32
    key_heads: int = 1
    heads: int = 1
    by_channel: bool = False
    rows: mx.Dtype = mx.float32
    seed: int = 0

    def arguments(self) -> dict[str, mx.array]:
        """q, k, v, g, beta and state, by name."""
        random = np.random.default_rng(self.seed)
        nodes = len(self.parents)
        k = random.standard_normal((1, nodes, self.key_heads, self.key_width))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        gates = (1, nodes, self.heads, self.key_width) if self.by_channel else (1, nodes, self.heads)
        drawn = {
            "q": random.standard_normal(k.shape),
            "k": k,
            "v": random.standard_normal((1, nodes, self.heads, self.value_width)),
            "beta": random.uniform(0.0, 2.0, (1, nodes, self.heads)),
        }
        arguments = {name: mx.array(values.astype(np.float32)).astype(self.rows) for name, values in drawn.items()}
        state = random.standard_normal((1, self.heads, self.value_width, self.key_width))
        g = random.choice(GATES, gates, p=(0.04, 0.04, 0.12, 0.3, 0.3, 0.2))
        return arguments | {"g": mx.array(g.astype(np.float32)), "state": mx.array(state.astype(np.float32))}


def as_float64(array: mx.array) -> Array:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def expected_state(arguments: dict[str, mx.array], path: Sequence[int]) -> Array:
    """[1, Hv, Dv, Dk] after the tokens of the path."""
    values: dict[str, Any] = {name: as_float64(array)[0] for name, array in arguments.items()}
    states = values["state"].copy()
    shared = states.shape[0] // values["k"].shape[1]
    for token in path:
        for head, state in enumerate(states):
            key = values["k"][token, head // shared]
            state *= values["g"][token, head]
            state += np.outer(values["beta"][token, head] * (values["v"][token, head] - state @ key), key)
    result: Array = states[None]
    return result


def expected_outputs(arguments: dict[str, mx.array], parents: Sequence[int]) -> Array:
    """[1, N, Hv, Dv], every node by its own walk from the state before the tree."""
    queries = as_float64(arguments["q"])[0]
    outputs = []
    for node in range(len(parents)):
        states = expected_state(arguments, path_to(parents, node))[0]
        shared = states.shape[0] // queries.shape[1]
        outputs.append([state @ queries[node, head // shared] for head, state in enumerate(states)])
    return np.array(outputs)[None]


def random_parents(nodes: int, seed: int, reach: int = 6) -> tuple[int, ...]:
    """One root; every other node hangs on one of the last `reach` before it."""
    random = np.random.default_rng(seed)
    return (-1, *(int(random.integers(max(0, node - reach), node)) for node in range(1, nodes)))
