"""A checkpoint's own config.json says whether it answers or only drafts."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.errors import ModelError
from worker.engine.drafters.metadata import helper_kind, read_config
from worker.engine.loading import load_target
from worker.engine.models import ModelSpec


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "dflash"),
        ({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3"}, "dflash"),
        ({"model_type": "gemma4_assistant"}, "gemma_assistant"),
        ({"model_type": "gemma4_unified_assistant"}, "gemma_assistant"),
        ({"model_type": "qwen3_5_mtp"}, "mtp"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, None),
        ({"model_type": "gemma4", "architectures": None}, None),
        ({}, None),
    ],
)
def test_the_kind_of_a_checkpoint(config: dict[str, Any], kind: str | None) -> None:
    assert helper_kind(config) == kind


def test_a_drafter_is_never_a_target(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DFlash2DraftModel"]}))
    with pytest.raises(ModelError, match=r"is a drafter \(dflash\).*--drafter"):
        load_target(ModelSpec(str(tmp_path)), tmp_path / "models")


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), ("[]", "no object"), (None, "cannot be read")])
def test_a_broken_config_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)
