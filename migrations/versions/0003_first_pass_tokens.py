"""How many tokens the first pass of a generation brought."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("results", sa.Column("first_pass_tokens", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("results", "first_pass_tokens")
