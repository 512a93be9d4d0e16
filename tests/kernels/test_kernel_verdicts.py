"""What a verdict depends on: it is of no use on another machine, or after a change of a kernel's text or probe."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from kernels.texts import COMMON, texts_digest
from kernels.verdicts import Key, Verdict, forget, read, verdict_key, write


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "kernel_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "choice.py").write_text("")
    (package / "text.metal").write_text("out[0] = 1;")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("kernel_of_a_test", "kernel_of_a_test.choice"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return "kernel_of_a_test.choice"


def key(home: str, variant: str = "metal", configuration: object = (mx.bfloat16, 64)) -> Key:
    texts_digest.cache_clear()
    return verdict_key("double", home, variant, configuration)


def test_a_verdict_is_that_of_its_key(home: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "kernels"
    assert read(folder, key(home)) is None
    write(folder, key(home), Verdict("off by 2"))
    write(folder, key(home, variant="cuda"), Verdict(None))
    assert read(folder, key(home)) == Verdict("off by 2")
    assert read(folder, key(home, variant="cuda")) == Verdict(None)
    assert read(folder, key(home, configuration=(mx.float16, 64))) is None
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json"]


@pytest.mark.parametrize("name", ["text.metal", "choice.py"])
def test_a_change_of_a_text_or_of_the_probe_is_another_key(name: str, home: str, tmp_path: Path) -> None:
    before = key(home)
    path = tmp_path / "kernel_of_a_test" / name
    path.write_text(path.read_text() + "\n")
    assert key(home) != before


@pytest.mark.parametrize("place", [0, 1])
def test_a_change_beside_one_of_several_homes_is_another_digest(place: int, home: str, tmp_path: Path) -> None:
    homes = ["kernels.qmm"]
    homes.insert(place, home)
    texts_digest.cache_clear()
    before = texts_digest(*homes)
    (tmp_path / "kernel_of_a_test" / "text.metal").write_text("out[0] = 2;")
    texts_digest.cache_clear()
    assert texts_digest(*homes) != before


@pytest.mark.parametrize("name", COMMON)
def test_a_change_of_what_all_texts_go_through_is_another_key(
    name: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, module = key(home), importlib.import_module(name)
    assert module.__file__ is not None
    changed = tmp_path / Path(module.__file__).name
    changed.write_text(Path(module.__file__).read_text() + "\n")
    monkeypatch.setattr(module, "__file__", str(changed))
    assert key(home) != before


def test_a_verdict_that_cannot_be_written_leaves_nothing_behind(home: str, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    write(folder, key(home), Verdict(None))
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write(folder, key(home), Verdict(None))
    assert list(folder.iterdir()) == [path]


def test_another_mlx_system_or_gpu_is_another_key(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [key(home)]
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M9", "architecture": "applegpu_g21s"})
    keys.append(key(home))
    monkeypatch.setattr("kernels.verdicts.version", lambda _: "99.1")
    keys.append(key(home))
    monkeypatch.setattr("platform.platform", lambda: "macOS-31.0-arm64")
    keys.append(key(home))
    assert keys[-1]["gpu"] == "Apple M9 (applegpu_g21s)"
    assert len({tuple(one.values()) for one in keys}) == 4


def test_what_is_forgotten_is_found_out_again(home: str, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    forget(folder)
    write(folder, key(home), Verdict(None))
    (folder / "note.txt").write_text("not a verdict")
    forget(folder)
    assert read(folder, key(home)) is None
    assert [path.name for path in folder.iterdir()] == ["note.txt"]


def test_what_other_gpus_found_in_a_shared_folder_is_kept(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels"
    (folder / "broken.json").parent.mkdir()
    (folder / "broken.json").write_text("{")
    write(folder, key(home), Verdict("off by 2"))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(mx, "device_info", lambda: {"device_name": "Apple M9", "architecture": "applegpu_g21s"})
        others = key(home)
        write(folder, others, Verdict(None))
        with monkeypatch.context() as older:
            older.setattr("kernels.verdicts.version", lambda _: "0.1")
            write(folder, key(home), Verdict(None))
        assert len(list(folder.iterdir())) == 4
    forget(folder)
    assert read(folder, key(home)) is None
    assert read(folder, others) == Verdict(None)
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M9", "architecture": "applegpu_g21s"})
    forget(folder)
    assert list(folder.iterdir()) == []
