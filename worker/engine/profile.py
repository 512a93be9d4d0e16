"""What is measured once per machine and model, and kept: the self-check's verdict and the cost curve."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import mlx.core as mx

from kernels import stored
from worker.engine.budget import CostCurve
from worker.engine.cost_measurement import measure_cost_curve
from worker.engine.linears import ALL_ROWS
from worker.engine.loading import Target
from worker.engine.machine import chip, power_mode
from worker.engine.product_gain import rows_that_gain
from worker.engine.sampling import log_softmax
from worker.engine.tree import TokenTree
from worker.engine.verdicts import verdict_key
from worker.engine.verify.copies import copied_all
from worker.engine.verify.selfcheck import decide_mode, random_chain, random_tree
from worker.engine.verify.verifier import Mode, Verifier, evaluate

PREFIX_TOKENS = 64


@dataclass(frozen=True)
class Profile:
    """verification, reuses_prefixes: how this model is verified here. curve: milliseconds of a pass over n nodes.

    first_rows, last_rows: the numbers of rows whose products are left to a kernel, where there is one.
    """

    verification: Mode
    curve: CostCurve
    reuses_prefixes: bool = True
    first_rows: int = ALL_ROWS.start
    last_rows: int = ALL_ROWS.stop - 1

    @property
    def rows(self) -> range:
        return range(self.first_rows, self.last_rows + 1)


class Profiles:
    """The profiles of a directory, for one model and trees of up to `max_nodes` nodes. notify: told of long steps."""

    def __init__(self, directory: Path, target: Target, max_nodes: int, notify: Callable[[str], None]) -> None:
        self._directory, self._target, self._max_nodes = directory, target, max_nodes
        self._notify = notify

    def find(self) -> Profile:
        """The stored profile of this machine, or a new one, measured in a few seconds and stored."""
        return self._load() or self._measure(" (once per model)")

    def measure(self) -> Profile:
        """Measure, whatever is stored, and store it."""
        return self._measure("")

    def measure_curve(self, profile: Profile, verifier: Verifier) -> Profile:
        """`profile` with the costs of now: a model is not verified otherwise because the clock has moved."""
        self._notify("passes no longer take as long as when they were measured; measuring again")
        return self._store(replace(profile, curve=_curve(self._target, verifier, self._max_nodes, self._notify)))

    def _measure(self, often: str) -> Profile:
        self._notify(f"measuring what a verification pass costs on this machine{often}")
        return self._store(measure_profile(self._target, self._max_nodes, self._notify))

    @property
    def _path(self) -> Path:
        return stored.path_of(self._directory, profile_key(self._target, self._max_nodes))

    def _load(self) -> Profile | None:
        try:
            record = stored.read(self._path)
            if record is None or record["verification"] not in get_args(Mode):
                return None
            return Profile(
                verification=record["verification"],
                curve=CostCurve.of(record["curve"]),
                reuses_prefixes=bool(record["reuses_prefixes"]),
                first_rows=int(record["first_rows"]),
                last_rows=int(record["last_rows"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _store(self, profile: Profile) -> Profile:
        path = self._path
        try:
            stored.write(path, {"key": profile_key(self._target, self._max_nodes), **asdict(profile)})
        except OSError as error:
            self._notify(f"{path} cannot be written ({error.strerror}): the next process measures again")
        return profile


def profile_key(target: Target, max_nodes: int) -> dict[str, str | int]:
    """All that the curve depends on."""
    return {**verdict_key(target), "power": power_mode(), "max_nodes": max_nodes}


def pair_key(target: Target, drafter: str) -> dict[str, str | int]:
    """What is learned of a drafter belongs to its contents, the target's, and the machine. drafter: `Pairing.key`."""
    return {
        "chip": chip(),
        **target.kernels.key,
        "model": str(target.spec),
        "identity": target.identity,
        "drafter": drafter,
    }


def measure_profile(target: Target, max_nodes: int, notify: Callable[[str], None] = lambda _: None) -> Profile:
    """Run the self-check on the real model, then time real passes; plain mode measures one node only."""
    verdict = decide_mode(target.model, target.vocabulary, target.dtype, target.kernels, target.products)
    if verdict.refused:
        without = "" if verdict.reuses_prefixes else ", and reuses no prefixes"
        notify(f"{target.spec} is verified in {verdict.mode} mode{without}: {verdict}")
    verifier = Verifier(target.model, verdict.mode, kernels=target.kernels)
    rows = _rows(target, verifier, max_nodes)
    curve = _curve(target, verifier, max_nodes, notify)
    return Profile(verdict.mode, curve, verdict.reuses_prefixes, rows.start, rows.stop - 1)


def _rows(target: Target, verifier: Verifier, max_nodes: int) -> range:
    """The numbers of rows for which the kernel's products gain; it multiplies those from then on."""
    products = target.products
    if products is None or not products.products:
        return ALL_ROWS
    rows = rows_that_gain(PassTimer(verifier, target.vocabulary), products.let, _nodes(verifier, max_nodes))
    products.let(rows)
    return rows


def _nodes(verifier: Verifier, max_nodes: int) -> int:
    return 1 if verifier.mode == "plain" else max_nodes


def _curve(target: Target, verifier: Verifier, max_nodes: int, notify: Callable[[str], None]) -> CostCurve:
    measured = measure_cost_curve(PassTimer(verifier, target.vocabulary), _nodes(verifier, max_nodes))
    if not measured.is_steady:
        change = max(measured.drift, measured.moved)
        notify(
            f"this machine's speed is not steady: after warming up a pass still changed by {change:.0%}; "
            "run cidermill calibrate when nothing else keeps it busy"
        )
    return measured.curve


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
