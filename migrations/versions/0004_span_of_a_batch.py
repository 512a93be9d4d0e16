"""An index of the times of a batch, so that its first start and last finish are found without reading its prompts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ["batch_id", "started_at", "finished_at"]
    op.create_index("ix_requests_span", "requests", columns, sqlite_where=sa.text("started_at IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_requests_span", "requests")
