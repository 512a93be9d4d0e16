"""What is measured once per machine and model, and kept: the self-check's verdict and the cost curve."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from worker.engine.budget import CostCurve, measure_cost_curve
from worker.engine.loading import Target
from worker.engine.machine import chip, power_mode
from worker.engine.sampling import log_softmax
from worker.engine.tree import TokenTree
from worker.engine.verify.copies import copied_all
from worker.engine.verify.selfcheck import VERSION, decide_mode, random_chain, random_tree
from worker.engine.verify.verifier import Mode, Verifier, evaluate

PREFIX_TOKENS = 64
KERNELS = "stock"


@dataclass(frozen=True)
class Profile:
    """verification, reuses_prefixes: how this model is verified here. curve: milliseconds of a pass over n nodes."""

    verification: Mode
    curve: CostCurve
    reuses_prefixes: bool = True


def profile_of(target: Target, directory: Path, max_nodes: int, notify: Callable[[str], None]) -> Profile:
    """The stored profile of this machine and model, or a new one, measured in a few seconds and stored."""
    key = profile_key(target, max_nodes)
    path = directory / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.json"
    stored = _load(path)
    if stored:
        return stored
    notify("measuring what a verification pass costs on this machine (once per model)")
    profile = measure_profile(target, max_nodes, notify)
    _store(path, key, profile)
    return profile


def profile_key(target: Target, max_nodes: int) -> dict[str, str | int]:
    """All that the curve depends on."""
    return {
        "chip": chip(),
        "kernels": KERNELS,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "verification": VERSION,
        "power": power_mode(),
        "model": str(target.spec),
        "identity": target.identity,
        "max_nodes": max_nodes,
    }


def measure_profile(target: Target, max_nodes: int, notify: Callable[[str], None] = lambda _: None) -> Profile:
    """Run the self-check on the real model, then time real passes; plain mode measures one node only."""
    verdict = decide_mode(target.model, target.vocabulary, target.dtype)
    if verdict.refused:
        without = "" if verdict.reuses_prefixes else ", and reuses no prefixes"
        notify(f"{target.spec} is verified in {verdict.mode} mode{without}: {verdict}")
    verifier = Verifier(target.model, verdict.mode)
    nodes = 1 if verifier.mode == "plain" else max_nodes
    curve = measure_cost_curve(PassTimer(verifier, target.vocabulary), nodes)
    return Profile(verdict.mode, curve, verdict.reuses_prefixes)


class PassTimer:
    """Times the real verification pass: random trees, or chains, after a prefix of PREFIX_TOKENS tokens."""

    def __init__(self, verifier: Verifier, vocabulary: int) -> None:
        self._verifier, self._vocabulary = verifier, vocabulary
        self._rng = random.Random(0)
        self._prefix = verifier.new_cache()
        verifier.prefill([self._rng.randrange(vocabulary) for _ in range(PREFIX_TOKENS)], self._prefix)

    def __call__(self, nodes: int) -> float:
        """Milliseconds of one pass over `nodes` nodes of which half are accepted.

        From the graph to the chosen tokens on the host and the commit: where that means to run the accepted tokens
        again, drafts are so much dearer.
        """
        tree, cache = self._draft(nodes), copied_all(self._prefix)
        path = tree.path((nodes - 1) // 2)
        begun = time.perf_counter()
        logits = self._verifier.forward(tree, cache)
        mx.eval(mx.argmax(log_softmax(logits), axis=-1))
        self._verifier.commit(tree, path, cache)
        evaluate(cache)
        return (time.perf_counter() - begun) * 1000

    def _draft(self, nodes: int) -> TokenTree:
        pending = self._rng.randrange(self._vocabulary)
        if self._verifier.mode == "chain":
            return random_chain(pending, nodes, self._vocabulary, self._rng)
        return random_tree(pending, nodes, max(1, nodes // 2), self._vocabulary, self._rng)


def _load(path: Path) -> Profile | None:
    try:
        stored = json.loads(path.read_text("utf-8"))
        curve = CostCurve(tuple(stored["curve"]["nodes"]), tuple(stored["curve"]["milliseconds"]))
        return Profile(stored["verification"], curve, stored["reuses_prefixes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(path: Path, key: dict[str, str | int], profile: Profile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"key": key, **asdict(profile)}, indent=2), "utf-8")
    os.replace(draft, path)
