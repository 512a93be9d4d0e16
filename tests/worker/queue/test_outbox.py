import sqlite3
import stat
from pathlib import Path

import pytest
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.errors import StorageError
from api.schemas import GenerationResult, RequestEvent
from tests.worker.queue.conftest import Station
from worker.outbox import Outbox, deliver_leftovers


def _event(index: int) -> RequestEvent:
    request_id = f"batch_x-{index}"
    result = GenerationResult(request_id=request_id, text="t")
    return RequestEvent(kind="finished", request_id=request_id, worker="w", attempt=1, at=1.0, result=result)


def execute(path: Path, statement: str) -> None:
    """As somebody else who has the file open."""
    database = sqlite3.connect(path)
    with database:
        database.execute(statement)
    database.close()


NO_DELETION = "CREATE TRIGGER t BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of outboxes alone."""
    (tmp_path / "outboxes").mkdir()
    return tmp_path / "outboxes"


def test_stored_events_are_published_in_order_and_gone(folder: Path, station: Station) -> None:
    outbox = Outbox(folder / "outbox-w.sqlite3")
    outbox.store(_event(0))
    outbox.store(_event(1))
    assert outbox.deliver(station.redis) == ["batch_x-0", "batch_x-1"]
    assert outbox.deliver(station.redis) == []
    assert station.pull() == [_event(0), _event(1)]
    outbox.close()
    assert list(folder.iterdir()) == []


def test_undelivered_event_stays_and_is_adopted_after_its_worker(folder: Path, station: Station) -> None:
    outbox = Outbox(folder / "outbox-w.sqlite3")
    outbox.store(_event(0))
    with pytest.raises(exceptions.ConnectionError):
        outbox.deliver(Redis(unix_socket_path=str(folder / "none"), retry=Retry(NoBackoff(), 0)))
    assert deliver_leftovers(folder, station.redis) == []  # its worker lives
    outbox.close()
    assert deliver_leftovers(folder, station.redis) == ["batch_x-0"]
    assert station.pull() == [_event(0)]
    assert list(folder.iterdir()) == []


def test_file_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "outbox-w.sqlite3"
    outbox = Outbox(path)
    outbox.store(_event(0))
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    outbox.close()


def test_damaged_outbox_stays_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "outbox-w.sqlite3").write_bytes(b"no database" * 1000)
    assert deliver_leftovers(tmp_path, Redis()) == []
    assert (tmp_path / "outbox-w.sqlite3").exists()


def test_second_worker_of_a_name_is_refused(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox-w.sqlite3")
    with pytest.raises(StorageError, match="outbox-w"):
        Outbox(tmp_path / "outbox-w.sqlite3")
    outbox.close()


def test_rows_that_cannot_be_deleted_are_passed_over(folder: Path, station: Station) -> None:
    path = folder / "outbox-w.sqlite3"
    outbox = Outbox(path)
    execute(path, NO_DELETION)
    outbox.store(_event(0))
    outbox.store(_event(1))
    assert outbox.deliver(station.redis) == ["batch_x-0", "batch_x-1"]
    outbox.store(_event(2))
    assert outbox.deliver(station.redis) == ["batch_x-2"]
    assert station.pull() == [_event(0), _event(1), _event(2)]
    outbox.close()
    assert list(folder.iterdir()) == []


def test_a_result_is_published_whose_row_takes_the_place_of_one_that_was_given_up(
    folder: Path, station: Station
) -> None:
    """A deletion can fail and be there all the same; the next row has its number then."""
    path = folder / "outbox-w.sqlite3"
    outbox = Outbox(path)
    execute(path, NO_DELETION)
    outbox.store(_event(0))
    outbox.store(_event(1))
    outbox.deliver(station.redis)
    execute(path, "DROP TRIGGER t")
    execute(path, "DELETE FROM outbox")
    outbox.store(_event(2))
    assert outbox.deliver(station.redis) == ["batch_x-2"]
    outbox.close()


def test_leavings_that_cannot_be_deleted_are_published_and_gone(folder: Path, station: Station) -> None:
    path = folder / "outbox-w.sqlite3"
    outbox = Outbox(path)
    outbox.store(_event(0))
    outbox.store(_event(1))
    outbox.close()
    execute(path, NO_DELETION)
    assert deliver_leftovers(folder, station.redis) == ["batch_x-0", "batch_x-1"]
    assert station.pull() == [_event(0), _event(1)]
    assert list(folder.iterdir()) == []


def test_an_outbox_that_cannot_be_read_says_so_and_stays(folder: Path, station: Station) -> None:
    path = folder / "outbox-w.sqlite3"
    outbox = Outbox(path)
    execute(path, "DROP TABLE outbox")
    with pytest.raises(StorageError, match=r"outbox-w\.sqlite3 cannot be read"):
        outbox.deliver(station.redis)
    outbox.close()
    assert path.exists()
