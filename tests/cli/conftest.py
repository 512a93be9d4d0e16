import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mill import Mill, MillAt
from tiny_llama import tiny_llama

CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return tiny_llama(CACHE / "tiny-llama")


@pytest.fixture(scope="session")
def profiles(tiny_model: Path) -> Path:
    """What an engine measures once per machine and model, so that not every data directory waits for it."""
    from worker.engine.engine import Engine, EngineOptions
    from worker.engine.models import ModelSpec

    data_dir = CACHE / "tiny-llama-data"
    Engine.load(ModelSpec.parse(str(tiny_model)), EngineOptions(data_dir=data_dir))
    return data_dir / "profiles"


@pytest.fixture(scope="module")
def mill_at(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[MillAt]:
    """Makes mills; all that was started in them ends with the module."""
    mills: list[Mill] = []
    with pytest.MonkeyPatch.context() as patch:
        runtime = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))  # pytest's own folders are too deep for a socket
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))

        def make(profiles: Path | None = None) -> Mill:
            mills.append(Mill(tmp_path_factory.mktemp("mill"), runtime, tiny_model, profiles))
            return mills[-1]

        yield make
        for mill in mills:
            mill.close()
        shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture
def mill(mill_at: MillAt) -> Iterator[Mill]:
    """A mill for one test, not made for working: no profile is measured."""
    found = mill_at()
    yield found
    found.close()


@pytest.fixture
def working_mill(mill_at: MillAt, profiles: Path) -> Iterator[Mill]:
    """A mill for one test whose worker need not measure first."""
    found = mill_at(profiles)
    yield found
    found.close()
