"""Engines over models made by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import CONTEXT, VOCABULARY, tiny_model
from toy_tokenizer import toy_tokenizer

from worker.engine.budget import CostCurve
from worker.engine.engine import Engine, EngineOptions
from worker.engine.loading import Target
from worker.engine.models import ModelSpec
from worker.engine.profile import Profile
from worker.engine.verify.verifier import Mode

EngineFor = Callable[..., Engine]


@pytest.fixture(scope="session")
def llama() -> Any:
    return tiny_model("llama")


@pytest.fixture
def engine_for(tmp_path: Path) -> EngineFor:
    """engine_for(model, tokenizer): an engine that verifies `nodes` nodes a pass, or as many as `curve` says."""

    def make(
        model: Any,
        tokenizer: TokenizerWrapper | None = None,
        *,
        drafter: Any = None,
        nodes: int | None = 16,
        curve: CostCurve | None = None,
        mode: Mode = "tree",
        context: int = CONTEXT,
        vocabulary: int = VOCABULARY,
        generation_defaults: dict[str, Any] | None = None,
        **options: Any,
    ) -> Engine:
        target = Target(
            spec=ModelSpec("tiny"),
            model=model,
            tokenizer=tokenizer or toy_tokenizer(),
            context=context,
            vocabulary=vocabulary,
            dtype=mx.float32,
            generation_defaults=generation_defaults or {},
            identity="tiny",
        )
        profile = Profile(mode, curve or CostCurve((1, 32), (1.0, 1.0)))
        engine = Engine(target, profile, EngineOptions(tmp_path, fixed_nodes=None if curve else nodes, **options))
        if drafter is not None:
            engine.drafter = drafter
        return engine

    return make
