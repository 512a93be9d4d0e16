"""Kernels for a loaded target: its linears are exchanged, and a rehearsal shows which kernels its passes use.

All that is measured or learned is kept by their names, so these have to be known first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx

from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.linears import install_kernels
from worker.engine.loading import Target
from worker.engine.profile import Profile
from worker.engine.tree import TokenTree
from worker.engine.verify.verifier import Mode, Verifier


def with_kernels(target: Target, kernels: KernelSet) -> Target:
    """`target` with its model, which is changed in place, computing with `kernels`; with STOCK where it uses none."""
    installed = install_kernels(target.model, kernels)
    if kernels is not STOCK:
        _rehearse(target.model, kernels)
        if kernels.name == STOCK.name:
            kernels = STOCK
    return replace(target, kernels=kernels, products=installed)


def without_harm(
    target: Target, profile: Profile, find: Callable[[Target], Profile], notify: Callable[[str], None]
) -> tuple[Target, Profile]:
    """`target` and its profile, or both without kernels where the self-check refuses a mode with them alone.

    So too where it refuses all modes: nothing has shown then that the kernels are right. find: the profile of a target.
    """
    if target.kernels is STOCK or profile.verification == "tree":
        return target, profile
    kernels, stock = target.kernels, with_kernels(target, STOCK)
    without = find(stock)
    if profile.verification == without.verification != "plain":
        return with_kernels(stock, kernels), profile
    notify(f"{target.spec} computes without kernels ({kernels.name}): its passes are not right with them")
    return stock, without


def _rehearse(model: Any, kernels: KernelSet) -> None:
    """Have a pass and a draw ask for all kernels that they are going to ask for."""
    try:
        mode: Mode = "tree" if Verifier.has_tree_form(model) else "plain"
        verifier = Verifier(model, mode, kernels=kernels)
        cache = verifier.new_cache()
        verifier.prefill([0, 1], cache)
        tree = TokenTree(0)
        if mode == "tree":
            tree.add(0, 1, 1.0)
            tree.add(0, 2, 1.0)  # not a chain, which MLX may do well by itself
        logits = verifier.forward(tree, cache)
        kernels.sampler(logits.dtype)
        mx.eval(logits)
    except Exception:  # noqa: BLE001 - whatever it is, the self-check meets it too, and says so
        return
