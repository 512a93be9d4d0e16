from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from ledger_samples import assert_counts, lines

from api.dataset.request_line import InputLine, LineError
from api.identity import new_batch_id
from api.ledger.ledger import Ledger
from api.schemas import Batch

Enter = Callable[..., Batch]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Whatever a test does with it, its counts are right afterwards."""
    with Ledger.open(tmp_path / "ledger.sqlite3") as opened:
        yield opened
        assert_counts(opened)


@pytest.fixture
def enter(ledger: Ledger) -> Enter:
    """enter(3) or enter(lines=[...]) puts a batch into the ledger."""

    def enter_batch(
        count: int = 1,
        *,
        lines_: Iterable[InputLine | LineError] | None = None,
        fingerprint: str = "f",
        batch_id: str | None = None,
    ) -> Batch:
        return ledger.create_batch(
            batch_id=batch_id or new_batch_id(),
            model="smollm2",
            priority="normal",
            input_path="/data/in.jsonl",
            input_sha256="00",
            fingerprint=fingerprint,
            output_path="/data/out.jsonl",
            output_format="openai",
            lines=lines(count) if lines_ is None else lines_,
        )

    return enter_batch
