"""What a session reuses is what a cold prefill would have made: every kind of cache, any sequence of requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remembering_model import KINDS, RememberingModel, cold_logits

from worker.engine.session import PrefixTree, Session
from worker.engine.session.prefix_tree import Node
from worker.engine.verify.verifier import Verifier

BLOCKS = [[block * 7 + place % 90 for place in range(size)] for block, size in enumerate((40, 35, 34, 3))]


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    completion: list[int]
    stopped_after: int | None
    """Passes of prefill after which it is cancelled."""


TAILS = st.lists(st.integers(0, 3), max_size=3)
PROMPTS = st.builds(
    lambda blocks, tail, end: [token for block in blocks for token in block] + tail + [end],
    st.lists(st.sampled_from(BLOCKS), max_size=3),
    TAILS,
    st.integers(0, 3),
)
REQUESTS = st.builds(Request, PROMPTS, st.lists(st.integers(0, 3), max_size=4), st.sampled_from([None, None, 0, 1, 2]))


def nodes(tree: PrefixTree) -> Iterator[Node]:
    """All nodes but the root."""
    stack = list(tree._root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def arrays_in(value: Any) -> list[mx.array]:
    if isinstance(value, mx.array):
        return [value]
    if isinstance(value, list | tuple):
        return [array for item in value for array in arrays_in(item)]
    if isinstance(value, dict):
        return [array for item in value.values() for array in arrays_in(item)]
    return arrays_in(vars(value)) if hasattr(value, "__dict__") else []


def check_tree(tree: PrefixTree) -> None:
    """Its bytes are those of the arrays in it, within the budget, and its nodes are those that have an order."""
    kept = list(nodes(tree))
    assert tree.nbytes == sum(array.nbytes for node in kept for array in arrays_in([node.rows, node.states]))
    assert tree.nbytes <= tree.budget
    assert set(kept) == set(tree._order)
    assert all(node.parent is not None and node.start == node.parent.end for node in kept)


def run(session: Session, model: RememberingModel, request: Request, chunk: int) -> None:
    """One request, as a generation runs it."""
    answers = iter([False] * (request.stopped_after or 0) + [request.stopped_after is not None])
    before = len(model.passes)
    cached = session.begin(request.prompt, chunk, lambda: next(answers, False))
    assert cached <= len(request.prompt) - 1
    prefilled = sum(model.passes[before:])
    assert session.tokens == request.prompt[: cached + prefilled]
    if request.stopped_after is not None and len(session.tokens) < len(request.prompt) - 1:
        return
    assert session.tokens == request.prompt[:-1]
    for pending in [request.prompt[-1], *request.completion]:
        logits = step(session, pending)
        assert logits == cold_logits(model, session.tokens)


def step(session: Session, pending: int) -> list[float]:
    """A plain pass over the pending token."""
    logits = session._verifier.step(mx.array([pending]), session.cache)
    session.extend([pending])
    row: list[float] = logits[-1].tolist()
    return row


@pytest.mark.parametrize(
    "kinds",
    [*([kind] for kind in KINDS), ["rows", "window"], ["arrays", "rows", "several"], list(KINDS)],
    ids="+".join,
)
@settings(max_examples=12, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=7),
    chunk=st.sampled_from([9, 50, 2048]),
    budget=st.sampled_from([0, 3_000, 30_000, 60_000, 10**9]),
)
def test_any_requests_go_on_from_what_a_cold_prefill_leaves(
    kinds: list[str], requests: Sequence[Request], chunk: int, budget: int
) -> None:
    model = RememberingModel(*kinds)
    tree = PrefixTree(budget)
    session = Session(Verifier(model, "plain"), tree)
    for request in requests:
        run(session, model, request, chunk)
        check_tree(tree)
