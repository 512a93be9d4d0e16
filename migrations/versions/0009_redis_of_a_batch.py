"""In which Redis a batch was put on the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("placed_in", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("batches", "placed_in")
