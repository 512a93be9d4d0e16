"""Verification of a draft tree in one pass of any model that mlx-lm loads.

`tree_pass` is what everybody knows of the tree in hand; `positions` gives every node its own position, `caches` the
mask and the commit, `attention` lets a kernel do without the mask, `recurrent` carries state along each node's path,
`adapters` reach what single families do otherwise. `verifier` runs the pass, `restoring` is its fallback, and
`selfcheck` decides on the real model which of them agrees with decoding one token at a time. `taps` give drafters the
hidden states of a pass.
"""
