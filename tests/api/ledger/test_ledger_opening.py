import multiprocessing
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from ledger_samples import lines

from api.errors import LedgerError, StorageError
from api.ledger.ledger import Ledger
from api.ledger.migrate import SCRIPTS
from api.ledger.tables import METADATA, REVISION

FORK = multiprocessing.get_context("fork")
NOBODY = 65534
TABLES = {"alembic_version", "batches", "requests", "results", "tallies", "events"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pragma(ledger: Ledger, name: str) -> object:
    with ledger.engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_new_ledger_is_private_and_durable(tmp_path: Path) -> None:
    path = tmp_path / "data" / "ledger.sqlite3"
    before = os.umask(0)
    try:
        with Ledger.open(path) as ledger:
            assert {mode(file) for file in path.parent.iterdir()} == {0o600}
            assert mode(path.parent) == 0o700
            assert pragma(ledger, "journal_mode") == "wal"
            assert pragma(ledger, "foreign_keys") == 1
            assert pragma(ledger, "busy_timeout") == 30_000
            assert pragma(ledger, "synchronous") == 2
            assert pragma(ledger, "fullfsync") == 1
    finally:
        os.umask(before)
    assert tables(path) == TABLES


def test_opening_again_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    create = {"model": "m", "priority": "low", "input_path": "i", "input_sha256": "s", "fingerprint": "f"}
    with Ledger.open(path) as ledger:
        made = ledger.create_batch(batch_id="batch_1", **create, output_path=None, output_format="csv", lines=lines(2))
    with Ledger.open(path) as ledger:
        assert ledger.batch("batch_1") == made
        assert ledger.output_of("batch_1") == (None, "csv")


def batches_seen_by_another_process(path: Path) -> list[str]:
    look = "import sqlite3, sys; print(*next(zip(*sqlite3.connect(sys.argv[1]).execute('SELECT id FROM batches')), ()))"
    return subprocess.run([sys.executable, "-c", look, path], capture_output=True, text=True, check=True).stdout.split()


def test_a_process_that_looks_in_and_leaves_does_not_remove_the_log_of_one_that_has_the_ledger_open_twice(
    tmp_path: Path,
) -> None:
    """POSIX takes all of a process's locks on a file away when it closes any descriptor of that file."""
    path = tmp_path / "ledger.sqlite3"
    create = {"model": "m", "priority": "low", "input_path": "i", "input_sha256": "s", "fingerprint": "f"}
    with Ledger.open(path) as ledger, Ledger.open(path):
        assert batches_seen_by_another_process(path) == []
        ledger.create_batch(batch_id="batch_1", **create, output_path=None, output_format="csv", lines=lines(2))
        assert batches_seen_by_another_process(path) == ["batch_1"]


@pytest.mark.filterwarnings("ignore:.*expression-based index")  # the next test looks at that one
def test_the_migrations_make_the_tables_of_the_models(ledger: Ledger) -> None:
    with ledger.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_checks_and_partial_indices_of_the_migrations_are_those_of_the_models(ledger: Ledger, tmp_path: Path) -> None:
    """What Alembic's comparison does not look at."""
    from api.ledger.connection import open_engine

    modelled = open_engine(tmp_path / "modelled.sqlite3")
    METADATA.create_all(modelled)
    schemas = []
    for engine in (ledger.engine, modelled):
        with engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql NOT LIKE '%alembic%'")
            schemas.append({name: sorted(" ".join(sql.split()).replace(") )", "))").split(",")) for name, sql in rows})
    modelled.dispose()
    migrated, expected = schemas
    assert migrated.keys() == expected.keys()
    results = ("ix_results_ttft", "ix_results_notes", "ix_results_further_choices")
    for name in ("requests", "batches", "ix_requests_open", "ix_requests_started", "ix_requests_finished", *results):
        conditions = [[part for part in schema[name] if "CHECK" in part or "WHERE" in part] for schema in schemas]
        assert conditions[0] == conditions[1]
        assert conditions[0]


def test_the_newest_migration_is_the_one_of_the_tables() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]


def test_migrations_can_be_taken_back_and_run_from_the_developers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import command

    monkeypatch.setenv("CIDERMILL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CIDERMILL_CONFIG", str(tmp_path / "none.toml"))
    config = Config(SCRIPTS.parent / "alembic.ini")
    command.upgrade(config, "head")
    assert tables(tmp_path / "ledger.sqlite3") == TABLES
    command.downgrade(config, "base")
    assert tables(tmp_path / "ledger.sqlite3") == {"alembic_version"}


def test_a_ledger_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    Ledger.open(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '0999'")
    with pytest.raises(LedgerError) as refusal:
        Ledger.open(path)
    assert str(refusal.value) == (f"ledger {path} was written by a newer cidermill (revision 0999); upgrade cidermill")


def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_text("a diary, " * 1000)
    with pytest.raises(LedgerError, match="is not an SQLite database"):
        Ledger.open(path)
    assert path.read_text() == "a diary, " * 1000


def test_the_database_of_something_else_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(LedgerError, match="is a database with other tables"):
        Ledger.open(path)
    assert tables(path) == {"recipes"}


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a regular file"):
        Ledger.open(tmp_path)


def test_a_place_without_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    os.chmod(tmp_path, 0o755)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(LedgerError, match=r"cannot be opened: Permission denied"):
            Ledger.open(folder / "ledger.sqlite3")
    finally:
        if root:
            os.seteuid(0)


def open_with_limit(path: Path, said: "multiprocessing.queues.Queue[str]") -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        Ledger.open(path)
    except StorageError as error:
        said.put(str(error))


def test_no_space_for_a_new_ledger_is_a_storage_error_and_the_next_opening_finds_a_clean_file(tmp_path: Path) -> None:
    path, said = tmp_path / "ledger.sqlite3", FORK.Queue()
    child = FORK.Process(target=open_with_limit, args=(path, said))
    child.start()
    sentence = said.get(timeout=20)
    child.join(20)
    assert str(path) in sentence
    assert "space" in sentence
    with Ledger.open(path) as ledger:
        assert ledger.batches() == []


def open_at_once(
    path: Path, gate: "multiprocessing.synchronize.Barrier", done: "multiprocessing.queues.Queue[str]"
) -> None:
    gate.wait(20)
    try:
        Ledger.open(path).close()
        done.put("open")
    except Exception as error:  # noqa: BLE001
        done.put(repr(error))


def test_processes_that_open_a_new_ledger_at_once_do_not_collide(tmp_path: Path) -> None:
    gate, done = FORK.Barrier(6), FORK.Queue()
    children = [FORK.Process(target=open_at_once, args=(tmp_path / "ledger.sqlite3", gate, done)) for _ in range(6)]
    for child in children:
        child.start()
    outcomes = [done.get(timeout=40) for _ in children]
    for child in children:
        child.join(20)
    assert outcomes == ["open"] * 6


def test_threads_that_open_new_ledgers_at_once_do_not_collide(tmp_path: Path) -> None:
    """Some the same, some their own: Alembic's context is one per process."""
    paths = [tmp_path / name for name in ("shared", "shared", "one", "two", "three", "four", "five", "six")]
    with ThreadPoolExecutor(len(paths)) as pool:
        ledgers = list(pool.map(Ledger.open, paths))
    for ledger in ledgers:
        ledger.close()
    assert [tables(path) for path in paths] == [TABLES] * len(paths)
