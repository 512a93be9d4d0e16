"""A recorder process that can be killed between its commit and its acknowledgement, with a disk that can be full.

Arguments: a JSON object of settings, one of the station (control, journals, name, housekeeping_seconds,
settling_seconds).
"""

import json
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import api.recorder
from api.ledger.ledger import Ledger
from api.queue.connection import connect
from api.queue.results import ResultsReader
from api.recorder import Recorder, reader_of
from api.schemas import RequestEvent
from api.settings import load_settings
from tests.history.control import Journal, Trap, full_disk
from tests.history.timed_queue import TimedQueue


class JournalingLedger(Ledger):
    """Writes down each result that is on the disk."""

    journal: Journal
    switch: Path

    def record(self, events: Sequence[RequestEvent]) -> list[str]:
        with full_disk(self.switch):
            finished = super().record(events)
        for request_id in finished:
            self.journal.note("recorded", request_id)
        return finished


def main() -> None:
    settings_text, station_text = sys.argv[1:]
    settings, station = load_settings(**json.loads(settings_text)), json.loads(station_text)
    control, name = Path(station["control"]), station["name"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    api.recorder.HOUSEKEEPING_SECONDS = station["housekeeping_seconds"]
    journal = Journal(Path(station["journals"]) / f"{name}.jsonl", name)
    trap = Trap(control / f"kill-{name}", journal)
    acknowledge = ResultsReader.acknowledge

    def acknowledge_if_alive(self: ResultsReader, entry_ids: Sequence[str]) -> None:
        if entry_ids:
            trap.passes("committed", None)
        acknowledge(self, entry_ids)

    ResultsReader.acknowledge = acknowledge_if_alive  # type: ignore[method-assign]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    assert settings.redis_url is not None
    connection = connect(settings.redis_url.get_secret_value(), patience_seconds=1)
    queue = TimedQueue(
        connection,
        max_attempts=settings.max_attempts,
        request_timeout_seconds=settings.request_timeout_seconds,
        settling_seconds=station["settling_seconds"],
        heartbeat_seconds=settings.heartbeat_seconds,
    )
    with JournalingLedger.open(settings.ledger_path) as ledger:
        assert isinstance(ledger, JournalingLedger)
        ledger.journal, ledger.switch = journal, control / "ledger-full"
        Recorder(ledger, queue, reader_of(ledger, connection, name)).run(stop)


if __name__ == "__main__":
    main()
