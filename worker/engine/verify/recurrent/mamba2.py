"""Mamba 2 (state space duality) on a tree, exactly: all nodes at once, from one reading of the state before the tree.

The recurrence (arXiv:2405.21060, section 2, with scalar decay per head) for one head with state S [Dh, Ds], input x
[Dh], B and C [Ds], step size t and negative A is

    S_i = exp(t_i A) S_(i-1) + t_i x_i B_i^T,    y_i = S_i C_i + D x_i

On a tree S_(i-1) is the state of the parent. With S_0 the state before the tree, G_i the product of the decays down to
node i, and R_ij that of the decays after node j down to i:

    y_i = G_i S_0 C_i + sum over j above i, and i itself, of R_ij (B_j . C_i) t_j x_j + D x_i
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.ssm import compute_dt, ssm_update

from worker.engine.verify.recurrent.decay import decays
from worker.engine.verify.recurrent.rule import Rule
from worker.engine.verify.tree_pass import TreePass


def mamba2_tree(
    x: mx.array,
    log_decay: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array,
    dt: mx.array,
    state: mx.array | None,
    current: TreePass,
) -> mx.array:
    """Outputs of the N nodes, [1, N, H, Dh] in the type of `x`; the recurrence is computed in float32.

    x: [1, N, H, Dh]. log_decay, dt: [1, N, H] float32, the logarithms of the decays and the step sizes. B, C:
    [1, N, G, Ds], each group serving H / G neighbouring heads. D: [H]. state: [1, H, Dh, Ds], None at the start of a
    text.
    """
    nodes, heads, width = x.shape[1:]
    groups = B.shape[2]
    between, prefix = decays(_by_group(log_decay[..., None], groups).squeeze(-1), current)
    keys, queries = (rows.squeeze(0).astype(mx.float32).swapaxes(0, 1)[:, None] for rows in (B, C))
    inputs = _by_group(dt[..., None] * x, groups)
    y = ((queries @ keys.swapaxes(-1, -2)) * between) @ inputs
    if state is not None:
        memory = state.astype(mx.float32).reshape(groups, -1, width, B.shape[3]).swapaxes(-1, -2)
        y = y + prefix * (queries @ memory)
    y = y.reshape(heads, nodes, width).swapaxes(0, 1)[None]
    return y.astype(x.dtype) + x * D.reshape(1, 1, heads, 1)


def _by_group(rows: mx.array, groups: int) -> mx.array:
    """[1, N, H, D] as [groups, H / groups, N, D] in float32."""
    by_head = rows.squeeze(0).astype(mx.float32).swapaxes(0, 1)
    return by_head.reshape(groups, -1, *by_head.shape[1:])


def _outputs(arguments: Mapping[str, Any], current: TreePass) -> mx.array:
    """The tree form of one call of mlx-lm's ssm_update."""
    assert arguments["mask"] is None
    assert arguments["lengths"] is None
    dt = compute_dt(arguments["dt"], arguments["dt_bias"], arguments["time_step_limit"])
    log_decay = dt * -mx.exp(arguments["A_log"]).astype(dt.dtype)
    return mamba2_tree(
        arguments["hidden_states"],
        log_decay,
        arguments["B"],
        arguments["C"],
        arguments["D"],
        dt,
        arguments["state"],
        current,
    )


MAMBA2 = Rule("ssm_update", ssm_update, ("hidden_states", "B", "C", "dt"), _outputs)
