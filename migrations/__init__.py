"""Alembic revisions of the ledger; `api.ledger.migrate` applies them whenever a ledger is opened."""
