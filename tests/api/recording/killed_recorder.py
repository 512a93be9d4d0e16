"""A recorder that stops for good between its commit and its acknowledgement: `killed_recorder.py URL LEDGER`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from api.ledger.ledger import Ledger
from api.queue.connection import connect
from api.queue.requests import RequestQueue
from api.queue.results import ResultsReader
from api.recorder import Recorder


class HeldReader(ResultsReader):
    def acknowledge(self, entry_ids: Sequence[str]) -> None:
        print("committed", len(entry_ids), flush=True)
        time.sleep(60)


connection = connect(sys.argv[1])
queue = RequestQueue(connection, max_attempts=2, request_timeout_seconds=60)
Recorder(Ledger.open(Path(sys.argv[2])), queue, HeldReader(connection, "run")).step()
