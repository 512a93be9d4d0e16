"""One process at a time writes a data directory's ledger, and others can ask whether one does."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

import pytest

from api.errors import LedgerError
from cli.coordinator import is_recorded, only_one
from cli.options import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(data_dir=tmp_path / "data")


def test_whether_one_records_is_known_and_a_second_is_refused(workspace: Workspace) -> None:
    assert not is_recorded(workspace)
    with only_one(workspace):
        assert is_recorded(workspace)
        with pytest.raises(LedgerError, match="already runs or records in"), only_one(workspace):
            pass
    assert not is_recorded(workspace)


def test_who_asks_is_in_nobodys_way(workspace: Workspace) -> None:
    with only_one(workspace):
        pass
    path = workspace.settings.data_dir / "coordinator.lock"
    with path.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        let_go = threading.Timer(0.1, lambda: fcntl.flock(asking, fcntl.LOCK_UN))
        let_go.start()
        before = time.monotonic()
        with only_one(workspace):
            assert time.monotonic() - before > 0.05
        let_go.join()
