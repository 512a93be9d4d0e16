"""`cancel` while the recorder takes steps of the same cancellation."""

from pathlib import Path

import pytest

from api.dataset.request_line import InputLine
from api.identity import new_batch_id
from api.ledger.ledger import Ledger
from api.schemas import RequestBody, RequestCounts
from cli.commands.batches import cancel
from cli.options import Workspace


def test_what_the_recorder_cancels_for_the_command_counts_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch_id = new_batch_id()
    with Ledger.open(tmp_path / "ledger.sqlite3") as ledger:
        ledger.create_batch(
            batch_id=batch_id,
            model="m",
            priority="normal",
            input_path="in.jsonl",
            input_sha256="00",
            fingerprint="f",
            output_path=None,
            output_format="jsonl",
            lines=[InputLine(line, f"c{line}", RequestBody(prompt="p")) for line in (1, 2, 3)],
        )

        def recorder_is_first(_: Workspace) -> None:
            assert len(ledger.cancel(batch_id)) == 3

        monkeypatch.setattr(Workspace, "reach", recorder_is_first)
        cancel(batch_id, data_dir=tmp_path)
        assert ledger.batch(batch_id).counts == RequestCounts(cancelled=3)
    assert capsys.readouterr().err == f"3 requests of {batch_id} cancelled\n"
