"""Several choices in the ledger: beside the first one's plain columns, and in a ledger that had no place for them."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from ledger_samples import finished, measured

from api.ledger.ledger import Ledger
from api.ledger.migrate import SCRIPTS
from api.schemas import Batch, Choice
from api.states import RequestState

Enter = Callable[..., Batch]


def test_sqlite_reads_the_texts_of_all_choices(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    several = finished(f"{batch.id}-0", text="one", further_choices=[Choice(text="twö"), Choice(text='"three"\n')])
    ledger.record([several, finished(f"{batch.id}-1", text="alone")])
    query = """
        SELECT text FROM results WHERE request_id = ?
        UNION ALL
        SELECT json_extract(value, '$.text') FROM results, json_each(further_choices) WHERE request_id = ?
    """
    with sqlite3.connect(ledger.path) as database:
        texts = [[text for (text,) in database.execute(query, (f"{batch.id}-{n}",) * 2)] for n in range(2)]
        stored = database.execute("SELECT further_choices FROM results ORDER BY request_id").fetchall()
    assert texts == [["one", "twö", '"three"\n'], ["alone"]]
    # Where there is a single choice, the column costs nothing.
    assert stored[1] == (None,)
    assert len(json.loads(stored[0][0])) == 2


def test_lone_surrogates_in_any_choice_are_replaced(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    event = finished(request, further_choices=[Choice(text="x")])
    assert event.result is not None
    broken = event.result.further_choices[0].model_copy(update={"text": "a\ud83d b"})
    ledger.record([event.model_copy(update={"result": event.result.model_copy(update={"further_choices": [broken]})})])
    result = ledger.request(request).result
    assert result is not None
    assert result.further_choices[0].text == "a\ufffd b"


def test_a_ledger_without_a_place_for_choices_is_brought_up_to_date_with_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIDERMILL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CIDERMILL_CONFIG", str(tmp_path / "none.toml"))
    command.upgrade(Config(SCRIPTS.parent / "alembic.ini"), "0001")
    path = tmp_path / "ledger.sqlite3"
    with sqlite3.connect(path) as database:
        columns = [name for (_, name, *_) in database.execute("PRAGMA table_info(results)")]
        assert "further_choices" not in columns
        database.execute(
            "INSERT INTO batches (id, model, priority, state, input_path, input_sha256, fingerprint, output_format,"
            " created_at) VALUES ('batch_1', 'm', 'normal', 'in_progress', 'i', 's', 'f', 'openai', 1.0)"
        )
        database.executemany(
            "INSERT INTO requests (id, batch_id, idx, custom_id, line, state, attempts, body, queued_at)"
            " VALUES (?, 'batch_1', ?, 'c', 1, ?, 1, '{\"prompt\":\"p\"}', 1.0)",
            [("batch_1-0", 0, "completed"), ("batch_1-1", 1, "queued")],
        )
        database.execute(
            "INSERT INTO results (request_id, text, finish_reason, token_ids, sampling, notes, budgets, wall_ms,"
            " passes, drafted_tokens, accepted_tokens, forced_tokens, prefill_ms, draft_ms, verify_ms, sample_ms,"
            " commit_ms, other_ms, peak_memory_bytes, repetition, model, drafter, verification, acceptance_rule,"
            " kernels, chip)"
            " VALUES ('batch_1-0', 'kept', 'stop', '[1]', '{}', '[]', '{\"1\": 1}', 5.0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0,"
            " 7, 0.5, 'm', 'none', 'plain', 'lossless', 'stock', 'c')"
        )
    with Ledger.open(path) as ledger:
        before = ledger.request("batch_1-0")
        assert before.result is not None
        assert (before.result.text, before.result.further_choices) == ("kept", [])
        assert before.stats is not None
        assert (before.stats.repetition, before.stats.longest_repeat) == (0.5, None)
        assert before.stats.acceptance_collapsed_at is None
        ledger.record(
            [finished("batch_1-1", further_choices=[Choice(text="new")], **measured(1, 2, wall=3.0, ttft=1.0))]
        )
        after = ledger.request("batch_1-1")
        assert after.state is RequestState.COMPLETED
        assert after.result is not None
        assert after.result.further_choices == [Choice(text="new")]
        assert ledger.stats("batch_1").counts.completed == 2
