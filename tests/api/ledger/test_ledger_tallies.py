"""The sums of a ledger that is older than its sums."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from ledger_samples import finished, lines, measured, refused

from api.ledger.connection import writing
from api.ledger.ledger import Ledger
from api.ledger.migrate import SCRIPTS


def test_an_older_ledger_gets_the_sums_that_a_new_one_has(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    kept = {"input_path": "i", "input_sha256": "s", "fingerprint": "f", "output_path": None, "output_format": "csv"}
    with Ledger.open(path) as ledger:
        batch = ledger.create_batch(batch_id="batch_A", model="m", priority="low", **kept, lines=lines(4))
        ledger.record([finished("batch_A-0", **measured(3, 4, wall=10.0, ttft=5.0)), refused("batch_A-2")])
        ledger.record([finished("batch_A-1", worker="mac-9", **measured(7, 1, wall=20.0, ttft=2.0))])
        before = ledger.stats(batch.id)
        config = Config()
        config.set_main_option("script_location", str(SCRIPTS))
        with writing(ledger.engine, path) as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0004")
    with Ledger.open(path) as ledger:
        assert ledger.stats(batch.id) == before
    assert before.completion_tokens == 5
