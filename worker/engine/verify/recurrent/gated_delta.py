"""The gated delta rule on a tree, exactly: all nodes at once, from one reading of the state before the tree.

The rule (Gated Delta Networks, arXiv:2412.06464, section 3.1; with a gate per key channel: Kimi Linear,
arXiv:2510.26692) is, for one head with state S [Dv, Dk], query q, key k, value v, gate g in [0, 1] and strength b:

    S_i = g_i S_(i-1) + d_i k_i^T,    d_i = b_i (v_i - g_i S_(i-1) k_i),    y_i = S_i q_i

On a tree S_(i-1) is the state of the parent. Unrolled down the path of each node, with S_0 the state before the tree,
G_i the product of the gates down to i, and R_ij that of the gates after node j down to i:

    d_i = b_i (v_i - G_i S_0 k_i - sum over j above i of R_ij (k_j . k_i) d_j)
    y_i = G_i S_0 q_i + sum over j above i, and i itself, of R_ij (k_j . q_i) d_j

So no node needs a state of its own. With a gate per key channel the scalar products become sums over the channels of
R_ij,c k_j,c k_i,c, and G_i scales the channels of k_i and q_i.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
from mlx_lm.models.gated_delta import compute_g, compute_lower_bound_g, gated_delta_update

from kernels.devices import computes_on
from kernels.gated_delta_tree.problem import Rows
from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.verify.recurrent.decay import decays, descents, log_gates
from worker.engine.verify.recurrent.gated_delta_kernel import GatedDeltaCall, kernel_call
from worker.engine.verify.recurrent.normalisation import before_norm
from worker.engine.verify.recurrent.rule import Arguments, Rule
from worker.engine.verify.tree_pass import TreePass


class _Reach(NamedTuple):
    """What keys and queries find, gates included; heads as [Hk, Hv / Hk].

    keys, queries: [..., N, N] scalar products with the keys of the node's own path, itself included.
    prefix_keys, prefix_queries: [..., N, Dv] the values in the state before the tree.
    """

    keys: mx.array
    queries: mx.array
    prefix_keys: mx.array
    prefix_queries: mx.array


def gated_delta_tree(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None,
    current: TreePass,
) -> mx.array:
    """Outputs of the N nodes, [1, N, Hv, Dv] in the type of `q`; computed in float32.

    q, k: [1, N, Hk, Dk], each head serving Hv / Hk neighbouring value heads. v: [1, N, Hv, Dv]. beta: [1, N, Hv].
    g: [1, N, Hv], or [1, N, Hv, Dk] with a gate per key channel. state: [1, Hv, Dv, Dk], None at the start of a text.
    """
    heads, width = v.shape[2:]
    shared = heads // k.shape[2]
    if state is None:
        state = mx.zeros((1, heads, width, k.shape[3]))
    memory = state.astype(mx.float32).reshape(-1, shared, width, k.shape[3]).swapaxes(-1, -2)
    find = _reach if g.ndim == 3 else _reach_by_channel
    reach = find(_grouped(q, 1), _grouped(k, 1), _gates(g, shared), memory, current)
    values = _grouped(v, shared)
    strength = _grouped(beta[..., None], shared)

    coupling = reach.keys * (strength * descents(current).above)
    writes = _solved(coupling, strength * (values - reach.prefix_keys), current)
    outputs = mx.addmm(reach.prefix_queries, reach.queries, writes)
    return outputs.flatten(0, 1).swapaxes(0, 1)[None].astype(q.dtype)


def _solved(coupling: mx.array, right: mx.array, current: TreePass) -> mx.array:
    """D with D + coupling D = right, where `coupling` joins a node only to nodes above it.

    Each round settles one more level of the tree, so after the depth of the tree D is exact. Squaring `coupling` would
    take fewer rounds, but its powers grow where keys resemble one another: 3e-5 of error instead of 3e-7.
    """
    solution = right
    for _ in range(current.tree.max_depth):
        solution = mx.addmm(right, coupling, solution, alpha=-1.0)
    return solution


def _reach(q: mx.array, k: mx.array, gates: mx.array, memory: mx.array, current: TreePass) -> _Reach:
    """With one gate per head; gates: [Hk, Hv / Hk, N]."""
    between, prefix = decays(gates, current)
    both = mx.concatenate([k, q], axis=-2)
    products = both @ k.swapaxes(-1, -2)
    found = both @ memory
    nodes = current.nodes
    return _Reach(
        keys=products[..., :nodes, :] * between,
        queries=products[..., nodes:, :] * between,
        prefix_keys=found[..., :nodes, :] * prefix,
        prefix_queries=found[..., nodes:, :] * prefix,
    )


def _reach_by_channel(q: mx.array, k: mx.array, gates: mx.array, memory: mx.array, current: TreePass) -> _Reach:
    """With one gate per head and key channel; gates: [Hk, Hv / Hk, N, Dk].

    Products are taken for the E pairs of one path only: E is about N times the usual depth, far below N * N.
    """
    pairs = descents(current).pairs
    decayed = mx.exp(pairs.sums @ gates) * mx.take(k, pairs.upper, axis=-2)
    prefix = mx.exp(descents(current).paths @ gates)
    return _Reach(
        keys=_matrix((mx.take(k, pairs.lower, axis=-2) * decayed).sum(-1), pairs.index),
        queries=_matrix((mx.take(q, pairs.lower, axis=-2) * decayed).sum(-1), pairs.index),
        prefix_keys=(prefix * k) @ memory,
        prefix_queries=(prefix * q) @ memory,
    )


def _matrix(products: mx.array, index: mx.array) -> mx.array:
    """[..., E] products of pairs as [..., N, N], zero elsewhere."""
    padded = mx.pad(products, [(0, 0)] * (products.ndim - 1) + [(0, 1)])
    return mx.take(padded, index, axis=-1)


def _grouped(rows: mx.array, shared: int) -> mx.array:
    """[1, N, H, D] of any type as [H / shared, shared, N, D] in float32."""
    return rows.squeeze(0).astype(mx.float32).swapaxes(0, 1).reshape(-1, shared, rows.shape[1], rows.shape[3])


def _gates(g: mx.array, shared: int) -> mx.array:
    """Logarithms of [1, N, Hv] or [1, N, Hv, Dk] gates with the heads in front, grouped."""
    logs = log_gates(g.squeeze(0)).swapaxes(0, 1)
    return logs.reshape(-1, shared, *logs.shape[1:])


def has_sequence_kernel() -> bool:
    """Whether mlx-lm walks a sequence, as a chain is one, in a single launch. Elsewhere it takes several per token."""
    return computes_on("Metal")


def _outputs(arguments: Arguments, current: TreePass) -> mx.array:
    """The tree form of one call of mlx-lm's gated_delta_update."""
    assert arguments["mask"] is None
    if current.is_chain and has_sequence_kernel():
        return gated_delta_update(**arguments)[0]  # type: ignore[no-any-return]
    return gated_delta_tree(*_rows(arguments), arguments["state"], current)


def _kernel(arguments: Arguments, kernels: KernelSet, is_chain: bool) -> GatedDeltaCall | None:
    """The same call by kernels."""
    if kernels is STOCK or arguments["mask"] is not None or (is_chain and has_sequence_kernel()):
        return None
    return kernel_call(_rows_of_kernels(arguments), arguments["state"], kernels)


def _rows(arguments: Arguments) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array]:
    """q, k, v, g and beta as mlx-lm's gated_delta_update makes them."""
    beta = mx.sigmoid(arguments["b"])
    if arguments["allow_neg_eigval"]:
        beta = beta * 2.0
    gate_arguments = (arguments["A_log"], arguments["a"], arguments["dt_bias"])
    bound = arguments["lower_bound"]
    g = compute_g(*gate_arguments) if bound is None else compute_lower_bound_g(*gate_arguments, bound)
    return arguments["q"], arguments["k"], arguments["v"], g, beta


def _rows_of_kernels(arguments: Arguments) -> Rows:
    """The same; kernels make short queries and keys, and usual gates, themselves."""
    q, k, v, a, b = (arguments[name] for name in ("q", "k", "v", "a", "b"))
    log_rate, bias = arguments["A_log"], arguments["dt_bias"]
    usual = arguments["lower_bound"] is None and not arguments["allow_neg_eigval"]
    if usual and a.ndim == 3 and log_rate.shape == bias.shape == v.shape[2:3]:
        rows = Rows(q, k, v, a, b, (log_rate, bias))
    else:
        rows = Rows(*_rows(arguments))
    raw = before_norm(q, k)
    return rows if raw is None else rows._replace(q=raw[0], k=raw[1], normed=False)


GATED_DELTA = Rule("gated_delta_update", gated_delta_update, ("q", "k", "v", "a", "b"), _outputs, _kernel)
