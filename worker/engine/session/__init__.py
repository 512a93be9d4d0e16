"""Caches that live between requests.

`session` is the live cache of the last request; `prefix_tree` keeps snapshots of earlier prompts under a memory budget.
Of a snapshot, `rows` are kept once for all prompts that share them, and `states` whole; `layers` tells them apart.
"""

from worker.engine.session.prefix_tree import PrefixTree
from worker.engine.session.session import Session

__all__ = ["PrefixTree", "Session"]
