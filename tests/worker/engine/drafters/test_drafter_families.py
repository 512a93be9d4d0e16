"""Which family can have which drafter: the lists behind the texts of all families are the engine's own facts."""

import json
from pathlib import Path
from typing import Any

import pytest
from engine_maker import EngineFor
from family_drafters import RUNNABLE, UNTAPPABLE, WITH_ASSISTANT, WITH_HEAD, drafters_of, verified
from family_texts import FILES, pairs
from mtp_checkpoints import raw_model

from api.errors import ModelError
from bench.families import FAMILIES, tiny_model
from worker.engine.drafters.dflash import load_dflash
from worker.engine.drafters.gemma_assistant import load_gemma_assistant
from worker.engine.drafters.mtp import find_mtp, load_mtp


@pytest.fixture(scope="module", params=RUNNABLE)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str) -> Any:
    return tiny_model(family)


def test_every_family_is_in_one_file() -> None:
    compared = [family for file in FILES for family in dict(pairs(file))]
    assert sorted(compared) == sorted(RUNNABLE)
    assert {family.group for family in FAMILIES.values() if family.cannot_run is None} == {
        group for groups in FILES.values() for group in groups
    }


def test_most_families_can_have_a_block_drafter() -> None:
    assert set(UNTAPPABLE) < set(RUNNABLE)
    assert len(UNTAPPABLE) == 31
    assert sum("dflash 2" in drafters_of(family) for family in RUNNABLE) == 101


def test_a_family_has_no_block_drafter_for_the_reason_that_is_given(family: str, model: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as raised:
        load_dflash(tmp_path, model)
    refused = "no block drafter can serve this target" in str(raised.value)
    assert refused == (family in UNTAPPABLE)
    # Any other is asked for its checkpoint, which is not there.
    assert UNTAPPABLE.get(family, "config.json") in str(raised.value)


def test_only_some_families_can_have_an_mtp_head(family: str, model: Any, tmp_path: Path) -> None:
    raw_model(tmp_path, family if family in WITH_HEAD else "qwen3_5")
    source = find_mtp(tmp_path)
    assert source is not None
    if family in WITH_HEAD:
        load_mtp(source, model)
    else:
        with pytest.raises(ModelError, match=r"needs a target of the Qwen3\.5 family"):
            load_mtp(source, model)


def test_only_some_families_can_have_an_assistant(family: str, model: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_assistant"}))
    with pytest.raises(ModelError) as raised:
        load_gemma_assistant(tmp_path, model)
    assert ("no Gemma-4 assistant can serve this target" in str(raised.value)) == (family not in WITH_ASSISTANT)


@pytest.mark.parametrize("family", [family for family in RUNNABLE if verified(family).mode == "plain"])
def test_where_decoding_is_plain_there_is_no_drafter(engine_for: EngineFor, family: str) -> None:
    assert engine_for(tiny_model(family), mode="plain", drafter=None).drafter.name == "none"
