"""The external draft model: any mlx-lm model with the target's vocabulary, usually a small one of the same family."""

from worker.engine.drafters.draft_model.drafter import EXPANSION, DraftModelDrafter
from worker.engine.drafters.draft_model.loading import load_draft_model

__all__ = ["EXPANSION", "DraftModelDrafter", "load_draft_model"]
