"""Batches, requests, results and the history of requests."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_batches()
    _create_requests()
    _create_results()
    _create_events()


def downgrade() -> None:
    for table in ("events", "results", "requests", "batches"):
        op.drop_table(table)


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("input_path", sa.Text(), nullable=False),
        sa.Column("input_sha256", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("output_path", sa.Text(), nullable=True),
        sa.Column("output_format", sa.Text(), nullable=False),
        sa.Column("created_at", sa.REAL(), nullable=False),
        sa.Column("finished_at", sa.REAL(), nullable=True),
        sa.Column("delivered_at", sa.REAL(), nullable=True),
        sa.CheckConstraint(
            "state IN ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired',"
            " 'cancelling', 'cancelled')",
            name=op.f("ck_batches_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index(op.f("ix_batches_fingerprint"), "batches", ["fingerprint"])


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("queued_at", sa.REAL(), nullable=False),
        sa.Column("started_at", sa.REAL(), nullable=True),
        sa.Column("finished_at", sa.REAL(), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'completed', 'failed', 'cancelled', 'expired')",
            name=op.f("ck_requests_state"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_requests_batch_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
        sa.UniqueConstraint("batch_id", "idx", name=op.f("uq_requests_batch_id_idx")),
    )
    op.create_index(op.f("ix_requests_batch_id_state"), "requests", ["batch_id", "state"])
    op.create_index(op.f("ix_requests_custom_id"), "requests", ["custom_id"])
    op.create_index(
        op.f("ix_requests_open"),
        "requests",
        ["batch_id", "idx"],
        sqlite_where=sa.text("state IN ('queued', 'running')"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.REAL(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name=op.f("fk_events_request_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint(
            "request_id", "kind", "worker", "attempt", "at", name=op.f("uq_events_request_id_kind_worker_attempt_at")
        ),
    )


def _create_results() -> None:
    op.create_table(
        "results",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("reasoning", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("matched_stop", sa.Text(), nullable=True),
        sa.Column("matched_stop_token", sa.Integer(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_status", sa.Integer(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("drafter", sa.Text(), nullable=True),
        sa.Column("verification", sa.Text(), nullable=True),
        sa.Column("acceptance_rule", sa.Text(), nullable=True),
        sa.Column("kernels", sa.Text(), nullable=True),
        sa.Column("chip", sa.Text(), nullable=True),
        sa.Column("wall_ms", sa.REAL(), nullable=True),
        sa.Column("ttft_ms", sa.REAL(), nullable=True),
        sa.Column("decode_tps", sa.REAL(), nullable=True),
        sa.Column("e2e_tps", sa.REAL(), nullable=True),
        sa.Column("passes", sa.Integer(), nullable=True),
        sa.Column("drafted_tokens", sa.Integer(), nullable=True),
        sa.Column("accepted_tokens", sa.Integer(), nullable=True),
        sa.Column("forced_tokens", sa.Integer(), nullable=True),
        sa.Column("acceptance", sa.REAL(), nullable=True),
        sa.Column("tokens_per_pass", sa.REAL(), nullable=True),
        sa.Column("prefill_ms", sa.REAL(), nullable=True),
        sa.Column("draft_ms", sa.REAL(), nullable=True),
        sa.Column("verify_ms", sa.REAL(), nullable=True),
        sa.Column("sample_ms", sa.REAL(), nullable=True),
        sa.Column("commit_ms", sa.REAL(), nullable=True),
        sa.Column("other_ms", sa.REAL(), nullable=True),
        sa.Column("peak_memory_bytes", sa.Integer(), nullable=True),
        sa.Column("repetition", sa.REAL(), nullable=True),
        sa.Column("token_ids", sa.Text(), nullable=False),
        sa.Column("logprobs", sa.Text(), nullable=True),
        sa.Column("sampling", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("budgets", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name=op.f("fk_results_request_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_results")),
    )
