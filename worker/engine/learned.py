"""What was learned of a drafter and a target on this machine, kept from one process to the next.

A worker writes it now and then and at its end; of two workers of one pair in one data directory, the last one to write
is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernels import stored
from worker.engine.calibration import Calibration
from worker.engine.draft_cost import DraftCost

REQUESTS_PER_WRITE = 20


class Learned:
    """`calibration` and `costs` of the pair that `key` names, and the file in `directory` that keeps them.

    costs: by the bits of the drafters, of a mixture or of one alone. notify: told of a file that cannot be read or
    written; neither is a reason to stop.
    """

    def __init__(self, directory: Path, key: stored.Key, notify: Callable[[str], None]) -> None:
        self._path, self._key, self._notify = stored.path_of(directory, key), key, notify
        self._unwritten = 0
        self.calibration = Calibration()
        self.costs: dict[int, DraftCost] = {}
        try:
            record = stored.read(self._path)
            if record is not None:
                self.calibration, self.costs = Calibration.of(record["calibration"]), _costs_of(record["draft_ms"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            notify(f"{self._path} is of no use ({error}): what drafts are worth is learned anew")

    def request_ended(self) -> None:
        """Note that a request has taught something; the file follows every REQUESTS_PER_WRITE requests."""
        self._unwritten += 1
        if self._unwritten >= REQUESTS_PER_WRITE:
            self.save()

    def save(self) -> None:
        """Write what was learned since the file was last written."""
        if not self._unwritten:
            return
        self._unwritten = 0
        draft_ms = {str(bit): cost.samples for bit, cost in self.costs.items()}
        content = {"key": dict(self._key), "calibration": self.calibration.record, "draft_ms": draft_ms}
        try:
            stored.write(self._path, content)
        except OSError as error:
            self._notify(f"{self._path} cannot be written ({error.strerror}): what was learned ends with this process")


def _costs_of(record: Mapping[str, Any]) -> dict[int, DraftCost]:
    return {int(bit): _cost_of(samples) for bit, samples in record.items()}


def _cost_of(record: Mapping[str, Any]) -> DraftCost:
    """JSON has made text of the numbers of passes. Raises ValueError, TypeError or AttributeError."""
    samples = {int(passes): [float(time) for time in times] for passes, times in record.items()}
    if not all(0 <= time < float("inf") for times in samples.values() for time in times):
        raise ValueError("a draft took no possible time")
    return DraftCost(samples)
