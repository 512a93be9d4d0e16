"""Why something happened to a request, and an index of events by batch, in the order in which they came."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("detail", sa.Text(), nullable=True))
    op.create_index("ix_events_batch", "events", [sa.text("rtrim(request_id, '0123456789')")])


def downgrade() -> None:
    op.drop_index("ix_events_batch", "events")
    op.drop_column("events", "detail")
