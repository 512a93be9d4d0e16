"""`models` lists what is on the machine; a drafter is shown as one, with what it says that it was made for."""

import json
from pathlib import Path

import pytest
from mill import Mill, Row, json_lines

QWEN = "Qwen/Qwen3.8-27B"
DFLASH = {"architectures": ["DFlash2DraftModel"], "model_type": "qwen3"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def checkpoint(directory: Path, config: object, base: str | None = None) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(bytes(3 * 2**20))
    if base:
        (directory / "README.md").write_text(f"---\nbase_model: {base}\n---\n")
    return directory


def snapshot(cache: Path, repository: str) -> Path:
    return cache / f"models--{repository.replace('/', '--')}" / "snapshots" / ("a" * 40)


@pytest.fixture
def rows(mill: Mill) -> dict[str, Row]:
    """What `models` says of each, by the last part of its name."""
    models, cache = mill.data_dir / "models", mill.folder / "hub"
    checkpoint(models / "llama", LLAMA, QWEN)
    checkpoint(models / "told", DFLASH, QWEN)
    checkpoint(models / "silent", {"model_type": "gemma4_assistant"})
    (models / "broken").mkdir()
    (models / "broken" / "config.json").write_text("{")
    checkpoint(snapshot(cache, "mlx-community/Qwen3.8-27B-4bit"), LLAMA, QWEN)
    checkpoint(snapshot(cache, "z-lab/Qwen3.8-27B-DFlash2"), DFLASH)
    checkpoint(snapshot(cache, "mlx-community/Head"), {"model_type": "qwen3_5_mtp"}, "Qwen/Qwen3.5-9B")
    done = mill.run("models", env={"HF_HUB_CACHE": str(cache)})
    assert (done.returncode, done.stderr) == (0, "")
    return {row["model"].rpartition("/")[2]: row for row in json_lines(done.stdout)}


def test_a_drafter_is_one_and_for_a_model(rows: dict[str, Row]) -> None:
    assert {name: row["kind"] for name, row in rows.items() if name != "smollm2"} == {
        "llama": "MLX directory",
        "told": f"drafter (dflash) for {QWEN}",
        "silent": "drafter (gemma_assistant)",
        "broken": "MLX directory",
        "Qwen3.8-27B-4bit": "hub",
        "Qwen3.8-27B-DFlash2": "drafter (dflash) for Qwen3.8-27B",
        "Head": "drafter (mtp) for Qwen/Qwen3.5-9B",
    }


def test_a_program_gets_kind_and_model_apart(rows: dict[str, Row], mill: Mill) -> None:
    facts = {name: (row["drafter"], row["made_for"]) for name, row in rows.items()}
    assert facts["told"] == ("dflash", [QWEN])
    assert facts["silent"] == ("gemma_assistant", [])
    assert facts["llama"] == facts["smollm2"] == facts["Qwen3.8-27B-4bit"] == (None, [])
    told = rows["told"]
    assert told["model"] == told["path"] == str(mill.data_dir / "models" / "told")
    assert told["size_mb"] == 3
    assert (rows["Head"]["model"], rows["Head"]["size_mb"]) == ("mlx-community/Head", 3)


def test_a_drafter_is_refused_as_a_model(mill: Mill) -> None:
    drafter = checkpoint(mill.data_dir / "models" / "told", DFLASH, QWEN)
    done = mill.run("bench", "--model", drafter)
    assert done.returncode == 6
    assert f"model {drafter} is a drafter (dflash), which only guesses for another model" in done.stderr
