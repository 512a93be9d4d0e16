"""Running sums over the results of each batch, and indices for what sums do not tell."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KINDS = ("worker", "finish_reason", "error_code", "verification")
SUMMED = (
    "prompt_tokens",
    "completion_tokens",
    "cached_prompt_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "forced_tokens",
    "passes",
)
TIMES = ("prefill_ms", "draft_ms", "verify_ms", "sample_ms", "commit_ms", "other_ms", "wall_ms", "ttft_ms")
DECODED = "FILTER (WHERE ttft_ms IS NOT NULL AND completion_tokens >= 1)"
INTEGERS = {
    "requests": "count(*)",
    **{name: f"sum({name})" for name in SUMMED},
    "tokens_of_passes": "sum(completion_tokens) FILTER (WHERE passes > 0)",
    "tokens_of_walls": "sum(completion_tokens) FILTER (WHERE wall_ms IS NOT NULL)",
    "after_first": f"sum(completion_tokens - coalesce(first_pass_tokens, 1)) {DECODED}",
    "ttft_count": "count(ttft_ms)",
    "peak_memory_bytes": "max(peak_memory_bytes)",
    "longest_repeat": "max(longest_repeat)",
    "acceptance_collapses": "count(acceptance_collapsed_at)",
}
REALS = {
    **{name: f"sum({name})" for name in TIMES},
    "decode_ms": f"sum(wall_ms - ttft_ms) {DECODED}",
    "repetition": "max(repetition)",
}


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column("batch_id", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in KINDS),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in INTEGERS),
        *(sa.Column(name, sa.REAL(), nullable=False) for name in REALS),
        sa.PrimaryKeyConstraint("batch_id", *KINDS, name="pk_tallies"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_tallies_batch_id", ondelete="CASCADE"),
    )
    batch = sa.text("rtrim(request_id, '0123456789')")
    op.create_index("ix_results_ttft", "results", [batch, "ttft_ms"], sqlite_where=sa.text("ttft_ms IS NOT NULL"))
    op.create_index("ix_results_notes", "results", ["request_id"], sqlite_where=sa.text("notes != '[]'"))
    several = sa.text("further_choices IS NOT NULL")
    op.create_index("ix_results_further_choices", "results", ["request_id"], sqlite_where=several)
    totals = INTEGERS | REALS
    kinds = [f"coalesce(results.{name}, '')" for name in KINDS]
    op.execute(
        f"INSERT INTO tallies (batch_id, {', '.join([*KINDS, *totals])}) "
        f"SELECT requests.batch_id, {', '.join([*kinds, *(f'coalesce({total}, 0)' for total in totals.values())])} "
        "FROM results JOIN requests ON requests.id = results.request_id "
        f"GROUP BY requests.batch_id, {', '.join(kinds)}"
    )


def downgrade() -> None:
    op.drop_table("tallies")
    for column in ("ttft", "notes", "further_choices"):
        op.drop_index(f"ix_results_{column}", "results")
