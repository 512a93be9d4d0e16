"""Whatever happens to requests, in whatever order: the counts in the row of their batch are those of a full count."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_samples import assert_counts, finished, handed_back, lines, refused, requeued, started

from api.dataset.request_line import LineError
from api.errors import LedgerError
from api.ledger.connection import writing
from api.ledger.ledger import Ledger
from api.ledger.migrate import SCRIPTS
from api.schemas import RequestCounts, RequestError
from api.states import BatchState

REQUESTS = 4
NAMES = (f"batch_{number}" for number in itertools.count())
BAD = LineError(line=9, code="invalid_json", message="no", custom_id=None)
TOLD = {"started": started, "handed_back": handed_back, "requeued": requeued, "finished": finished, "refused": refused}

moments = st.tuples(
    st.sampled_from([*TOLD, "put again", "given up", "cancelled", "expired"]),
    st.integers(0, REQUESTS - 1),
    st.integers(1, 2),
)


@pytest.fixture(scope="module")
def shared_ledger() -> Iterator[Ledger]:
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "ledger.sqlite3") as ledger:
        yield ledger


def enter(ledger: Ledger, batch_id: str, found: Iterator[object] | list[object]) -> None:
    create = {"model": "m", "priority": "low", "input_path": "i", "input_sha256": "s", "fingerprint": "f"}
    ledger.create_batch(batch_id=batch_id, **create, output_path=None, output_format="csv", lines=found)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(history=st.lists(moments, max_size=12))
def test_counts_are_those_of_a_full_count(shared_ledger: Ledger, history: list[tuple[str, int, int]]) -> None:
    batch_id = next(NAMES)
    enter(shared_ledger, batch_id, [*lines(REQUESTS), BAD])
    for kind, index, attempt in history:
        request_id = f"{batch_id}-{index}"
        if kind == "put again":
            shared_ledger.requeued([request_id, f"{batch_id}-0"])
        elif kind == "given up":
            shared_ledger.fail(request_id, RequestError(code="worker_lost", message="lost"))
        elif kind == "cancelled":
            shared_ledger.cancel(batch_id)
        elif kind == "expired":
            shared_ledger.expire(batch_id, spared=frozenset())
        else:
            shared_ledger.record([TOLD[kind](request_id, attempt=attempt)])
        assert_counts(shared_ledger)
    assert shared_ledger.batch(batch_id).counts.total == REQUESTS + 1


def test_counts_of_a_batch_by_hand(ledger: Ledger) -> None:
    enter(ledger, "batch_A", [*lines(REQUESTS), BAD])
    assert ledger.batch("batch_A").counts == RequestCounts(queued=4, failed=1)
    ledger.record([started("batch_A-0"), started("batch_A-1"), finished("batch_A-1"), finished("batch_A-2")])
    assert ledger.batch("batch_A").counts == RequestCounts(queued=1, running=1, completed=2, failed=1)
    ledger.cancel("batch_A")
    assert ledger.batch("batch_A").counts == RequestCounts(cancelled=2, completed=2, failed=1)


def test_what_is_removed_half_entered_leaves_no_counts(ledger: Ledger) -> None:
    def cut_short() -> Iterator[object]:
        yield from lines(3)
        raise LedgerError("the file changed")

    enter(ledger, "batch_A", lines(2))  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="changed"):
        enter(ledger, "batch_B", cut_short())
    assert [batch.counts for batch in ledger.batches()] == [RequestCounts(queued=2)]


def test_an_older_ledger_gets_the_counts_that_a_new_one_has(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with Ledger.open(path) as ledger:
        for name in ("batch_A", "batch_B"):
            enter(ledger, name, [*lines(REQUESTS), BAD])
        ledger.record([started("batch_A-0"), finished("batch_A-1"), refused("batch_A-2")])
        ledger.cancel("batch_B")
        before = ledger.batches()
        config = Config()
        config.set_main_option("script_location", str(SCRIPTS))
        with writing(ledger.engine, path) as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0007")
    with Ledger.open(path) as ledger:
        assert ledger.batches() == before
        assert_counts(ledger)


def write_as_an_older_version(ledger: Ledger, state: str, *request_ids: str) -> None:
    """It moves requests, and knows nothing of the counts in the row of their batch."""
    with writing(ledger.engine, ledger.path) as connection:
        for request_id in request_ids:
            connection.exec_driver_sql("UPDATE requests SET state = ? WHERE id = ?", (state, request_id))


def test_counts_that_an_older_version_left_wrong_are_mended(ledger: Ledger) -> None:
    for name in ("batch_A", "batch_B", "batch_C"):
        enter(ledger, name, lines(3))  # type: ignore[arg-type]
    assert ledger.recount() == {}
    write_as_an_older_version(ledger, "completed", "batch_A-0")
    write_as_an_older_version(ledger, "running", "batch_B-0", "batch_B-2")
    ledger.record([finished("batch_A-1"), finished("batch_A-2")])
    assert (ledger.batch("batch_A").state, ledger.batch("batch_A").counts.queued) == (BatchState.IN_PROGRESS, 1)
    assert ledger.recount() == {
        "batch_A": {"queued": -1, "completed": 1},
        "batch_B": {"queued": -2, "running": 2},
    }
    after = ledger.batch("batch_A")
    assert (after.state, after.counts) == (BatchState.COMPLETED, RequestCounts(completed=3))
    assert ledger.batch("batch_B").state is BatchState.IN_PROGRESS
    assert ledger.batch("batch_B").counts == RequestCounts(queued=1, running=2)
    ledger.record([finished(f"batch_B-{index}") for index in range(3)])
    assert ledger.batch("batch_B").state is BatchState.COMPLETED
    assert ledger.batch("batch_C").counts == RequestCounts(queued=3)
    assert ledger.recount() == {}


def test_a_batch_that_is_being_entered_is_not_closed_by_a_recount(ledger: Ledger) -> None:
    def counted_in_between() -> Iterator[object]:
        assert ledger.recount() == {}
        yield from lines(2)

    enter(ledger, "batch_A", counted_in_between())
    assert ledger.batch("batch_A").state is BatchState.IN_PROGRESS


def test_requests_are_written_in_one_module_alone() -> None:
    folder = Path(__file__).parents[3] / "api"
    writes = [f"{verb}({'REQUESTS'})" for verb in ("insert", "update", "delete")]
    writing_modules = {path.name for path in folder.rglob("*.py") if any(w in path.read_text("utf-8") for w in writes)}
    assert writing_modules == {"counts.py"}
