"""Engines over models made by hand."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer
from tiny_models import CONTEXT, VOCABULARY, tiny_model
from toy_tokenizer import toy_tokenizer

from api.schemas import ResolvedValue
from worker.engine import gguf
from worker.engine.budget import CostCurve
from worker.engine.engine import Engine, EngineOptions
from worker.engine.loading import Target, resolve
from worker.engine.models import Dtype, ModelSpec
from worker.engine.profile import Profile
from worker.engine.verify.verifier import Mode

REPOSITORY = Path(__file__).parents[3]


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
        reuses_prefixes: bool = True,
        context: int = CONTEXT,
        vocabulary: int = VOCABULARY,
        generation_defaults: dict[str, Any] | None = None,
        **options: Any,
    ) -> Engine:
        target = Target(
            spec=ModelSpec("tiny"),
            directory=tmp_path,
            model=model,
            tokenizer=tokenizer or toy_tokenizer(),
            context=context,
            vocabulary=vocabulary,
            dtype=mx.float32,
            recipe={name: ResolvedValue(value=v, source="model") for name, v in (generation_defaults or {}).items()},
            identity="tiny",
        )
        profile = Profile(mode, curve or CostCurve((1, 32), (1.0, 1.0)), reuses_prefixes and mode != "plain")
        engine = Engine(target, profile, EngineOptions(tmp_path, fixed_nodes=None if curve else nodes, **options))
        if drafter is not None:
            engine.drafter = drafter
        return engine

    return make


@pytest.fixture(scope="session")
def smollm2_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct with its weights as they are packed, converted by the code under test."""
    return convert_smollm2(tmp_path_factory.mktemp("models"), None)


@pytest.fixture(scope="session")
def smollm2_float32_directory() -> Path:
    """The dense float32 copy, half a gigabyte: kept between runs until the converter changes."""
    source = hashlib.sha256(Path(gguf.__file__).read_bytes()).hexdigest()[:12]
    models = REPOSITORY / ".cache" / "test-models"
    for other in models.glob("*"):
        if other.name != source:
            shutil.rmtree(other, ignore_errors=True)
    return convert_smollm2(models / source, "float32")


def convert_smollm2(models: Path, dtype: Dtype | None) -> Path:
    directory = resolve(ModelSpec("smollm2", dtype), models)
    assert isinstance(directory, Path)
    return directory


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_directory: Path) -> TokenizerWrapper:
    return load_tokenizer(smollm2_directory)
