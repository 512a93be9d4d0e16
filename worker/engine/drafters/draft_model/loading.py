"""Loading a draft model for a target, and checking that the two can work together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from worker.engine.drafters.draft_model.drafter import EXPANSION, DraftModelDrafter
from worker.engine.drafters.draft_model.vocabulary import check_same_vocabulary, known_ids
from worker.engine.drafters.expansion import Expansion
from worker.engine.loading import Target, load_target
from worker.engine.memory import MemoryLimit, weight_bytes
from worker.engine.models import ModelSpec
from worker.engine.verify.selfcheck import decide_mode


def load_draft_model(
    spec: ModelSpec,
    target: Target,
    models_dir: Path,
    *,
    expansion: Expansion = EXPANSION,
    memory_limit_gb: float | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> DraftModelDrafter:
    """The model `spec` as a drafter for `target`, which is loaded already.

    Raises ModelError when it cannot be loaded, when both together do not fit into memory, and when its vocabulary is
    another. `notify` is told when it can only draft chains.
    """
    draft = load_target(spec, models_dir, memory_limit_gb=memory_limit_gb, notify=notify)
    check_same_vocabulary(target.tokenizer, draft.tokenizer, str(spec))
    weights = weight_bytes(target.model) + weight_bytes(draft.model)
    MemoryLimit.of(memory_limit_gb).check(f"{target.spec} with draft model {spec}", weights)
    verdict = decide_mode(draft.model, draft.vocabulary, draft.dtype)
    if verdict.mode != "tree":
        notify(f"draft model {spec} drafts chains, not trees: {verdict}")
    vocabulary = min(target.vocabulary, draft.vocabulary, known_ids(draft.tokenizer))
    return DraftModelDrafter(draft.model, verdict.mode, vocabulary, draft.context, expansion)
