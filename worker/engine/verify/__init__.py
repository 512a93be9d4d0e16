"""Verification of a draft tree in one pass of any model of plain attention that mlx-lm loads.

`positions` gives every node its own position, `caches` the mask and the commit, `verifier` the pass, and `selfcheck`
decides on the real model whether all that agrees with decoding one token at a time.
"""
