"""Bring a ledger to the tables of this program when it is opened."""

import threading
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

import api
from api.errors import LedgerError
from api.ledger.connection import reading, writing
from api.ledger.tables import REVISION

SCRIPTS = Path(api.__file__).parents[1] / "migrations"
_VERSION_TABLE = "alembic_version"

# Alembic keeps its context in module globals: one migration at a time in a process.
_one_at_a_time = threading.Lock()


def migrate(engine: Engine, path: Path) -> None:
    """Apply the migrations that the ledger lacks, all in one transaction under the write lock.

    Raises LedgerError for a ledger of a newer program and for a database that is not a ledger.
    """
    with reading(engine, path) as connection:
        if current_revision(connection, path) == REVISION:
            return
    with _one_at_a_time, writing(engine, path) as connection:
        revision = current_revision(connection, path)
        if revision != REVISION:
            _upgrade(connection, path, revision)


def current_revision(connection: Connection, path: Path) -> str | None:
    """The ledger's revision; None for an empty database. Raises LedgerError for a database of something else."""
    tables = inspect(connection).get_table_names()
    if _VERSION_TABLE in tables:
        return connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()
    if tables:
        raise LedgerError(f"{path} is not a ledger: it is a database with other tables; choose another data_dir")
    return None


def _upgrade(connection: Connection, path: Path, revision: str | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise LedgerError(f"ledger {path} was written by a newer cidermill (revision {revision}); upgrade cidermill")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
