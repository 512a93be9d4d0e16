"""Requests by state in the row of their batch, and the ends of its span at the ends of an index each."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATES = ("queued", "running", "completed", "failed", "cancelled", "expired")


def upgrade() -> None:
    for state in STATES:
        op.add_column("batches", sa.Column(state, sa.Integer(), nullable=False, server_default="0"))
        counted = f"SELECT count(*) FROM requests WHERE batch_id = batches.id AND state = '{state}'"
        op.execute(f"UPDATE batches SET {state} = ({counted})")
    op.drop_index("ix_requests_batch_id_state", "requests")
    op.drop_index("ix_requests_span", "requests")
    started = sa.text("started_at IS NOT NULL")
    op.create_index("ix_requests_started", "requests", ["batch_id", "started_at"], sqlite_where=started)
    finished = sa.text("started_at IS NOT NULL AND finished_at IS NOT NULL")
    op.create_index("ix_requests_finished", "requests", ["batch_id", "finished_at"], sqlite_where=finished)


def downgrade() -> None:
    op.drop_index("ix_requests_finished", "requests")
    op.drop_index("ix_requests_started", "requests")
    span = ["batch_id", "started_at", "finished_at"]
    op.create_index("ix_requests_span", "requests", span, sqlite_where=sa.text("started_at IS NOT NULL"))
    op.create_index("ix_requests_batch_id_state", "requests", ["batch_id", "state"])
    for state in STATES:
        op.drop_column("batches", state)
