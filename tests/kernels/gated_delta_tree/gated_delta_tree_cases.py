"""Random calls of the gated delta rule over trees, and what they must give: float64, token by token, path by path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kernels.gated_delta_tree import Rows

Array = NDArray[np.float64]

# Factors that a product of gates must survive: the one that forgets, nearly that, and those of a usual model.
GATES = (0.0, 1e-6, 0.3, 0.9, 0.999, 1.0)


@dataclass(frozen=True)
class Case:
    """Widths, heads and types of a call. by_channel: a gate per key channel. raw: q, k, g and beta are yet to be made.

    apart: q, k and v are arrays of their own, and not parts of one.
    """

    parents: tuple[int, ...]
    key_width: int
    value_width: int = 32
    key_heads: int = 1
    heads: int = 1
    by_channel: bool = False
    rows: mx.Dtype = mx.float32
    raw: bool = False
    apart: bool = False
    seed: int = 0

    def arguments(self) -> dict[str, mx.array]:
        """q, k, v, g, beta and state, by name; if raw, A_log and dt_bias too."""
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
        arguments |= {"g": mx.array(g.astype(np.float32)), "state": mx.array(state.astype(np.float32))}
        return arguments | self._unmade(random) if self.raw else arguments

    def _unmade(self, random: np.random.Generator) -> dict[str, mx.array]:
        """Keys and queries of any length, and what gates and strengths are made of where a head has one gate."""
        nodes = len(self.parents)
        keys = {name: random.standard_normal((1, nodes, self.key_heads, self.key_width)) * 3 for name in "qk"}
        drawn = keys
        if not self.by_channel:
            drawn = keys | {name: random.standard_normal((1, nodes, self.heads)) * 6 for name in ("g", "beta")}
            parameters = {name: random.standard_normal(self.heads) for name in ("A_log", "dt_bias")}
            drawn |= {name: values.astype(np.float32) for name, values in parameters.items()}
        made = {name: mx.array(values.astype(np.float32)) for name, values in drawn.items()}
        return {name: array if name == "A_log" else array.astype(self.rows) for name, array in made.items()}

    def call(self, changed: dict[str, mx.array] | None = None) -> tuple[Rows, mx.array]:
        """Rows and state, of the arguments or what is given instead."""
        given = changed or self.arguments()
        q, k, v = (given[name] for name in "qkv")
        if not self.apart:
            mixed = mx.concatenate([array.flatten(2) for array in (q, k, v)], axis=-1)
            parts = mx.split(mixed, [q[0, 0].size, q[0, 0].size + k[0, 0].size], axis=-1)
            q, k, v = (part.reshape(array.shape) for part, array in zip(parts, (q, k, v), strict=True))
        parameters = None
        if "A_log" in given:  # as columns, whose elements lie apart
            log_rate, bias = (
                mx.stack([array, array + 1], axis=1)[:, 0] for array in (given["A_log"], given["dt_bias"])
            )
            parameters = log_rate, bias
        return Rows(q, k, v, given["g"], given["beta"], parameters, not self.raw), given["state"]


def as_float64(array: mx.array) -> Array:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def made(arguments: dict[str, mx.array], raw: bool) -> dict[str, Array]:
    """q, k, v, g, beta and state without the leading axis, as the recurrence takes them."""
    values = {name: as_float64(array) for name, array in arguments.items()}
    if "A_log" in values:
        rate = np.log1p(np.exp(values["g"] + values["dt_bias"]))
        values["g"] = np.exp(-np.exp(values["A_log"]) * rate)
        values["beta"] = 1 / (1 + np.exp(-values["beta"]))
    if raw:
        lengths = {name: np.sqrt((values[name] ** 2).sum(-1, keepdims=True) + 1e-6) for name in "qk"}
        values["k"] = values["k"] / lengths["k"]
        values["q"] = values["q"] / lengths["q"] / np.sqrt(values["q"].shape[-1])
    return {name: array[0] for name, array in values.items()}


def expected_state(arguments: dict[str, mx.array], path: Sequence[int], raw: bool = False) -> Array:
    """[1, Hv, Dv, Dk] after the tokens of the path."""
    values = made(arguments, raw)
    states = values["state"].copy()
    shared = states.shape[0] // values["k"].shape[1]
    for token in path:
        for head, state in enumerate(states):
            key = values["k"][token, head // shared]
            state *= values["g"][token, head]
            state += np.outer(values["beta"][token, head] * (values["v"][token, head] - state @ key), key)
    result: Array = states[None]
    return result


def expected_outputs(arguments: dict[str, mx.array], parents: Sequence[int], raw: bool = False) -> Array:
    """[1, N, Hv, Dv], every node by its own walk from the state before the tree."""
    queries = made(arguments, raw)["q"]
    outputs = []
    for node in range(len(parents)):
        states = expected_state(arguments, path_to(parents, node), raw)[0]
        shared = states.shape[0] // queries.shape[1]
        outputs.append([state @ queries[node, head // shared] for head, state in enumerate(states)])
    return np.array(outputs)[None]


def random_parents(nodes: int, seed: int, reach: int = 6) -> tuple[int, ...]:
    """One root; every other node hangs on one of the last `reach` before it."""
    random = np.random.default_rng(seed)
    return (-1, *(int(random.integers(max(0, node - reach), node)) for node in range(1, nodes)))
