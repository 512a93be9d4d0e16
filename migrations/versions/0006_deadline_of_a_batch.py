"""When a batch expires."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("expires_at", sa.REAL(), nullable=True))


def downgrade() -> None:
    op.drop_column("batches", "expires_at")
