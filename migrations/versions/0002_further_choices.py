"""Further choices of a result, and what tells of loops and of a drafter that lost its way."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = {"further_choices": sa.Text(), "longest_repeat": sa.Integer(), "acceptance_collapsed_at": sa.Integer()}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("results", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_column("results", name)
