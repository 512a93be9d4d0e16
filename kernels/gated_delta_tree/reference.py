"""The gated delta rule in plain MLX operations, one level of the tree, or one token, after another.

For one head with state S [Dv, Dk] of the parent (Gated Delta Networks, arXiv:2412.06464, section 3.1; with a gate per
key channel: Kimi Linear, arXiv:2510.26692):

    S' = g S + d k^T,    d = beta (v - g S k),    y = S' q

What makes q, k, g and beta of what a model computes: `Rows`.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from kernels.gated_delta_tree.problem import NORM_EPS, Recurrence, Rows
from kernels.gated_delta_tree.tree import Tree


class _Rows(NamedTuple):
    """Of n nodes, in float32. q, k: [n, Hv, Dk]. v: [n, Hv, Dv]. g: [n, Hv, 1 or Dk]. beta: [n, Hv, 1]."""

    q: mx.array
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array

    def take(self, nodes: mx.array) -> _Rows:
        return _Rows(*(mx.take(rows, nodes, axis=0) for rows in self))


def reference() -> Recurrence:
    return Recurrence(_outputs, _commit, _advance)


def _outputs(rows: Rows, state: mx.array, tree: Tree) -> mx.array:
    wide = _wide(rows)
    states = state
    outputs: list[mx.array | None] = [None] * len(tree)
    for level in tree.levels:
        nodes = mx.array(level.nodes)
        of_level = wide.take(nodes)
        states = _step(mx.take(states, mx.array(level.slots), axis=0), of_level)
        for node, output in zip(level.nodes, _product(states, of_level.q), strict=True):
            outputs[node] = output
    return mx.stack([output for output in outputs if output is not None])[None].astype(rows.q.dtype)


def _commit(rows: Rows, state: mx.array, path: mx.array) -> mx.array:
    accepted = _wide(rows).take(path)
    for token in range(path.size):
        state = _step(state, accepted.take(mx.array([token])))
    return state


def _advance(rows: Rows, state: mx.array) -> tuple[mx.array, mx.array]:
    wide = _wide(rows)
    outputs = []
    for token in range(rows.k.shape[1]):
        of_token = wide.take(mx.array([token]))
        state = _step(state, of_token)
        outputs.append(_product(state, of_token.q))
    return mx.concatenate(outputs)[None].astype(rows.q.dtype), state


def _step(states: mx.array, rows: _Rows) -> mx.array:
    """States [n, Hv, Dv, Dk] after one more token each."""
    decayed = states * rows.g[:, :, None, :]
    written = rows.beta * (rows.v - _product(decayed, rows.k))
    return decayed + written[..., None] * rows.k[:, :, None, :]


def _product(states: mx.array, vectors: mx.array) -> mx.array:
    """[n, Hv, Dv]: a sum in float32 on every device, while a matrix product may round its factors."""
    return (states * vectors[:, :, None, :]).sum(axis=-1)


def _wide(rows: Rows) -> _Rows:
    """In float32, with what `rows` leave to be made."""
    q, k, v, g, beta = (array[0].astype(mx.float32) for array in rows[:5])
    if rows.gate_parameters is not None:
        log_rate, bias = (array.astype(mx.float32) for array in rows.gate_parameters)
        g = mx.exp(-mx.exp(log_rate) * mx.logaddexp(g + bias, mx.array(0.0)))
        beta = mx.sigmoid(beta)
    if not rows.normed:
        k = k * mx.rsqrt(mx.square(k).sum(-1, keepdims=True) + NORM_EPS)
        q = q * mx.rsqrt((mx.square(q).sum(-1, keepdims=True) + NORM_EPS) * q.shape[-1])
    shared = v.shape[1] // k.shape[1]
    gates = g if g.ndim == 3 else g[..., None]
    return _Rows(mx.repeat(q, shared, axis=1), mx.repeat(k, shared, axis=1), v, gates, beta[..., None])
