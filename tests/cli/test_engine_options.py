"""The settings of a worker as the options of its engine."""

from pathlib import Path
from typing import Any

import pytest

from api.errors import InputError
from cli.commands.fleet import load_engine
from cli.coordinator import Coordinator
from cli.options import Workspace
from worker.engine.engine import Engine, EngineOptions


def options_of(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, flags: dict[str, Any] | None = None, **settings: str
) -> EngineOptions:
    """The options that a worker with these settings in its environment, and these flags, gives to its engine."""
    loaded: list[Any] = []
    monkeypatch.setattr(Engine, "load", lambda *arguments, **_: loaded.append(arguments))
    monkeypatch.setenv("CIDERMILL_CONFIG", str(data_dir / "none.toml"))
    for name, value in settings.items():
        monkeypatch.setenv(f"CIDERMILL_{name.upper()}", value)
    load_engine(Workspace(data_dir=data_dir, **(flags or {})))
    ((_, options, _),) = loaded
    assert isinstance(options, EngineOptions)
    return options


@pytest.mark.parametrize(("setting", "size"), [("3", 3 * 2**20), ("0", 0)])
def test_memory_for_snapshots_is_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, size: int
) -> None:
    assert options_of(monkeypatch, tmp_path, prefix_cache_mb=setting).prefix_cache_bytes == size


def test_memory_for_snapshots_is_the_engine_s_to_decide_where_no_setting_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert options_of(monkeypatch, tmp_path).prefix_cache_bytes is None


def test_the_other_settings_go_by_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = {"max_tree_nodes": 5, "prefill_chunk": 77, "default_max_tokens": 9, "memory_limit_gb": 1.5}
    named |= {"adopt": "measured", "drafter": "suffix", "batch_memory": False, "kernels": "off"}
    options = options_of(monkeypatch, tmp_path, **{name: str(value) for name, value in named.items()})
    assert {name: getattr(options, name) for name in named} == named
    assert options.data_dir == tmp_path


def test_kernels_are_a_flag_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert options_of(monkeypatch, tmp_path).kernels == "auto"
    assert options_of(monkeypatch, tmp_path, {"kernels": "off"}).kernels == "off"
    with pytest.raises(InputError, match="setting kernels"):
        options_of(monkeypatch, tmp_path, kernels="fast")


def test_run_hands_its_kernels_on_to_the_worker(tmp_path: Path) -> None:
    coordinator = Coordinator.__new__(Coordinator)
    coordinator._workspace, coordinator.server = Workspace(data_dir=tmp_path, kernels="off"), None
    assert coordinator._worker_settings()["CIDERMILL_KERNELS"] == "off"
