"""Loading a draft model for a target, and checking that the two can work together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from worker.engine.drafters.draft_model.drafter import EXPANSION, DraftModelDrafter
from worker.engine.drafters.draft_model.vocabulary import check_same_vocabulary, known_ids
from worker.engine.drafters.expansion import Expansion
from worker.engine.loading import Target, load_target
from worker.engine.memory import ModelMemory
from worker.engine.models import ModelSpec
from worker.engine.verdicts import find_verdict


def load_draft_model(
    spec: ModelSpec,
    target: Target,
    data_dir: Path,
    *,
    expansion: Expansion = EXPANSION,
    memory: ModelMemory | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> DraftModelDrafter:
    """The model `spec` as a drafter for `target`, which is loaded already.

    data_dir: keeps converted models, and the self-check's verdict. memory: where it has to fit in; None = what the
    device gives. Raises ModelError when it cannot be loaded, which is before its weights are read when it does not fit,
    and when its vocabulary is another. `notify` is told when it can only draft chains.
    """
    draft = load_target(spec, data_dir / "models", memory=memory, notify=notify)
    check_same_vocabulary(target.tokenizer, draft.tokenizer, str(spec))
    verdict = find_verdict(draft, data_dir / "verdicts", notify)
    if verdict.mode != "tree":
        notify(f"draft model {spec} drafts chains, not trees: {verdict}")
    vocabulary = min(target.vocabulary, draft.vocabulary, known_ids(draft.tokenizer))
    return DraftModelDrafter(draft.model, verdict.mode, vocabulary, draft.context, expansion)
