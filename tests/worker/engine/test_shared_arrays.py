"""What all layers of a pass, or of its commit, share: one array, made once."""

import mlx.core as mx
from recurrent_passes import deep_tree

from worker.engine.verify.accepted import index_of
from worker.engine.verify.positions import node_positions
from worker.engine.verify.tree_pass import TreePass


def test_layers_at_one_offset_share_the_positions_of_the_nodes() -> None:
    tree = deep_tree(9, 4, 100, seed=2)
    current = TreePass(tree)
    positions = node_positions(current, 7)
    assert positions is node_positions(current, 7)
    assert positions.tolist() == [7 + len(tree.path(node)) - 1 for node in range(9)]
    assert node_positions(current, 3).tolist() == [position - 4 for position in positions.tolist()]
    for offset in (mx.array(7), mx.array([7])):  # as some models pass it
        assert mx.array_equal(node_positions(current, offset), positions)


def test_layers_share_the_index_of_the_rows_that_a_commit_keeps() -> None:
    index = index_of([0, 2, 5])
    assert index is index_of((0, 2, 5))
    assert (index.tolist(), index.dtype) == ([0, 2, 5], mx.int32)
