"""The gated delta rule in plain MLX operations, one level of the tree, or one token, after another.

For one head with state S [Dv, Dk] of the parent (Gated Delta Networks, arXiv:2412.06464, section 3.1; with a gate per
key channel: Kimi Linear, arXiv:2510.26692):

    S' = g S + d k^T,    d = beta (v - g S k),    y = S' q
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from kernels.gated_delta_tree.problem import Recurrence
from kernels.gated_delta_tree.tree import Tree


class _Rows(NamedTuple):
    """Of n nodes, in float32. k: [n, Hv, Dk]. v: [n, Hv, Dv]. g: [n, Hv, 1 or Dk]. beta: [n, Hv, 1]."""

    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array

    def take(self, nodes: mx.array) -> _Rows:
        return _Rows(*(mx.take(rows, nodes, axis=0) for rows in self))


def reference() -> Recurrence:
    return Recurrence(_outputs, _commit, _advance)


def _outputs(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, tree: Tree
) -> mx.array:
    rows = _rows(k, v, g, beta)
    queries = _shared(q, v.shape[2])
    states = state
    outputs: list[mx.array | None] = [None] * len(tree)
    for level in tree.levels:
        nodes = mx.array(level.nodes)
        states = _step(mx.take(states, mx.array(level.slots), axis=0), rows.take(nodes))
        found = _product(states, mx.take(queries, nodes, axis=0))
        for node, output in zip(level.nodes, found, strict=True):
            outputs[node] = output
    return mx.stack([output for output in outputs if output is not None])[None].astype(q.dtype)


def _commit(k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, path: mx.array) -> mx.array:
    accepted = _rows(k, v, g, beta).take(path)
    for token in range(path.size):
        state = _step(state, _Rows(*(rows[token : token + 1] for rows in accepted)))
    return state


def _advance(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    rows = _rows(k, v, g, beta)
    queries = _shared(q, v.shape[2])
    outputs = []
    for token in range(k.shape[1]):
        state = _step(state, _Rows(*(of_all[token : token + 1] for of_all in rows)))
        outputs.append(_product(state, queries[token : token + 1]))
    return mx.concatenate(outputs)[None].astype(q.dtype), state


def _step(states: mx.array, rows: _Rows) -> mx.array:
    """States [n, Hv, Dv, Dk] after one more token each."""
    decayed = states * rows.g[:, :, None, :]
    written = rows.beta * (rows.v - _product(decayed, rows.k))
    return decayed + written[..., None] * rows.k[:, :, None, :]


def _product(states: mx.array, vectors: mx.array) -> mx.array:
    """[n, Hv, Dv]: a sum in float32 on every device, while a matrix product may round its factors."""
    return (states * vectors[:, :, None, :]).sum(axis=-1)


def _rows(k: mx.array, v: mx.array, g: mx.array, beta: mx.array) -> _Rows:
    gates = g[0].astype(mx.float32)
    return _Rows(
        _shared(k, v.shape[2]),
        v[0].astype(mx.float32),
        gates if gates.ndim == 3 else gates[..., None],
        beta[0, ..., None].astype(mx.float32),
    )


def _shared(rows: mx.array, heads: int) -> mx.array:
    """[1, N, Hk, Dk] as [N, Hv, Dk] in float32."""
    return mx.repeat(rows[0].astype(mx.float32), heads // rows.shape[2], axis=1)
