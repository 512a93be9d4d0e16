"""What Alembic runs: on the connection of a program that opens a ledger, else on the ledger of the settings."""

from alembic import context
from sqlalchemy import Connection

from api.ledger.connection import create_file, open_engine, writing
from api.ledger.tables import METADATA
from api.settings import load_settings


def run(connection: Connection) -> None:
    """Run the revisions asked for within the connection's own transaction."""
    context.configure(connection=connection, target_metadata=METADATA, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


def run_on_settings_ledger() -> None:
    """For developers at the `alembic` command line."""
    path = load_settings().ledger_path
    create_file(path)
    with writing(open_engine(path), path) as connection:
        run(connection)


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    run_on_settings_ledger()
