"""What of the hub is on this machine, from caches laid out as the hub's client does."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from worker.engine.hub_cache import cached_models, repository_of

OLD, NEW = "0" * 40, "1" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def add(cache: Path, folder: str, commit: str, ref: str | None = None, size: int = 10) -> Path:
    directory = cache / folder / "snapshots" / commit
    directory.mkdir(parents=True)
    (directory / "config.json").write_bytes(b" " * size)
    if ref:
        (cache / folder / "refs").mkdir(exist_ok=True)
        (cache / folder / "refs" / ref).write_text(commit)
    return directory


def test_no_cache_holds_nothing(cache: Path) -> None:
    assert cached_models() == []


def test_a_file_in_its_place_holds_nothing(cache: Path) -> None:
    cache.write_text("")
    assert cached_models() == []


def test_models_alone_are_listed_by_name(cache: Path) -> None:
    add(cache, "models--b--two", NEW, "main")
    directory = add(cache, "models--a--one", NEW, "main", size=33)
    add(cache, "datasets--a--rows", NEW, "main")
    one, two = cached_models()
    assert (one.repository, one.size) == ("a/one", 33)
    assert one.directory.samefile(cache / "models--a--one")
    assert one.snapshot is not None
    assert one.snapshot.samefile(directory)
    assert two.repository == "b/two"


def test_of_several_snapshots_it_is_that_of_the_main_branch(cache: Path) -> None:
    main = add(cache, "models--a--one", OLD, "main")
    add(cache, "models--a--one", NEW, "other")
    (one,) = cached_models()
    assert one.snapshot is not None
    assert one.snapshot.samefile(main)


def test_a_repository_without_a_snapshot_has_none(cache: Path) -> None:
    (cache / "models--a--one" / "snapshots").mkdir(parents=True)
    (one,) = cached_models()
    assert (one.repository, one.snapshot) == ("a/one", None)


@pytest.mark.parametrize(
    ("path", "repository"),
    [
        (f"hub/models--mlx-community--Qwen3.8-27B-4bit/snapshots/{NEW}", "mlx-community/Qwen3.8-27B-4bit"),
        (f"hub/models--gpt2/snapshots/{NEW}", "gpt2"),
        ("models/Qwen3.8-27B-4bit", None),
        (f"hub/datasets--a--rows/snapshots/{NEW}", None),
        ("models--a--one", None),
    ],
)
def test_a_snapshot_knows_its_repository(path: str, repository: str | None) -> None:
    assert repository_of(Path("/cache") / path) == repository
