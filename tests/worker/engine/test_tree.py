"""TokenTree by hand."""

import numpy as np
import pytest

from worker.engine.tree import TokenTree


def branching() -> TokenTree:
    r"""Nodes 0..5:   0(7) - 1(10) - 3(12) - 5(14)
    \           \ 4(13)
     2(11)
    """
    tree = TokenTree(7)
    one = tree.add(0, 10, 0.5)
    tree.add(0, 11, 0.4)
    three = tree.add(one, 12, 0.8)
    tree.add(one, 13, 0.1)
    tree.add(three, 14, 0.5)
    return tree


def test_add_grows_in_topological_order() -> None:
    tree = branching()
    assert tree.tokens == [7, 10, 11, 12, 13, 14]
    assert tree.parents == [-1, 0, 0, 1, 1, 3]
    assert tree.depths == [0, 1, 1, 2, 2, 3]
    assert tree.values == pytest.approx([1.0, 0.5, 0.4, 0.4, 0.05, 0.2])
    assert tree.max_depth == 3
    assert len(tree) == 6


def test_add_merges_equal_siblings_and_keeps_the_larger_confidence() -> None:
    tree = TokenTree(7)
    node = tree.add(0, 10, 0.3)
    assert tree.add(0, 10, 0.6) == node
    assert tree.add(0, 10, 0.2) == node
    assert len(tree) == 2
    assert tree.confidences[node] == 0.6
    assert tree.values[node] == 0.6


def test_equal_tokens_of_different_parents_stay_apart() -> None:
    tree = TokenTree(7)
    first = tree.add(0, 10, 0.5)
    second = tree.add(first, 10, 0.5)
    assert first != second
    assert tree.child(first, 10) == second
    assert tree.child(second, 10) is None


def test_children_and_child() -> None:
    tree = branching()
    assert list(tree.children(0)) == [1, 2]
    assert list(tree.children(1)) == [3, 4]
    assert list(tree.children(5)) == []
    assert tree.child(1, 13) == 4
    assert tree.child(1, 14) is None


def test_ancestors() -> None:
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 1],
    ]
    np.testing.assert_array_equal(branching().ancestors(), np.array(expected, dtype=bool))


def test_path() -> None:
    tree = branching()
    assert tree.path(0) == [0]
    assert tree.path(5) == [0, 1, 3, 5]
    assert tree.path(2) == [0, 2]


def test_is_chain() -> None:
    chain = TokenTree(1)
    assert chain.is_chain
    for node in range(3):
        chain.add(node, node, 0.9)
    assert chain.is_chain
    chain.add(2, 99, 0.1)
    assert not chain.is_chain
    assert not branching().is_chain


def test_pruned_puts_the_likeliest_chain_first() -> None:
    tree = branching()
    tree.values = [1.0, 0.3, 0.6, 0.1, 0.2, 0.05]
    pruned = tree.pruned([0, 1, 2, 3, 4, 5])
    assert pruned.tokens == [7, 11, 10, 13, 12, 14]
    assert pruned.parents == [-1, 0, 0, 2, 2, 4]
    assert pruned.values == [1.0, 0.6, 0.3, 0.2, 0.1, 0.05]
    assert pruned.confidences == [1.0, 0.4, 0.5, 0.1, 0.8, 0.5]
    assert tree.tokens == [7, 10, 11, 12, 13, 14]


def test_pruned_keeps_what_it_is_told() -> None:
    pruned = branching().pruned([0, 3, 1])
    assert pruned.tokens == [7, 10, 12]
    assert pruned.parents == [-1, 0, 1]
    assert pruned.is_chain
    assert branching().pruned([0]).tokens == [7]


def test_pruned_refuses_a_node_without_its_parent() -> None:
    with pytest.raises(AssertionError):
        branching().pruned([0, 3])
