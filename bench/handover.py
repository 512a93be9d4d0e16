"""How long a request of a killed worker waits for its start on another one, with the leases that a fleet has.

Pairs of workers, each of a model of its own, on one real server: one runs a request, and one is idle, so that it alone
looks for requests of the dead. The first is killed (SIGKILL) at a time of chance between two of its heartbeats. All
pairs at once: 36 hand-overs take about three minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from api.identity import new_batch_id, request_id
from api.queue.server import PrivateServer
from api.schemas import GenerationRequest, GenerationResult, JobStats
from api.settings import Settings
from bench.queue_measures import NoDescription, queue_at
from bench.report import save, table
from worker.process import serve
from worker.rq_worker import BEATS_TO_SETTLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

HEADINGS = ["measure", "hand-overs", "value", "unit", "target"]
TARGET_SECONDS = 60
PATIENCE_SECONDS = 300
LOOK_SECONDS = 0.005


class Leases(NamedTuple):
    """All in seconds. spread: over which the kills are spread, several heartbeats."""

    lease: float = 45.0
    heartbeat: float = 5.0
    spread: float = 30.0

    @property
    def settling(self) -> float:
        """After a start of the server, in which no lease is ended."""
        return self.lease + BEATS_TO_SETTLE * self.heartbeat


FLEET, SMALL = Leases(), Leases(2.0, 0.5, 1.0)


@dataclass
class WaitingEngine:
    """Writes the time at which a request starts into a file, and runs it until it is told to stop."""

    starts: Path
    description: NoDescription = field(default_factory=NoDescription)

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        draft = self.starts.with_suffix(".draft")
        draft.write_text(repr(time.time()))
        draft.replace(self.starts)
        while should_stop is None or not should_stop():
            time.sleep(0.2)
        return GenerationResult(request_id=request.request_id, text="", finish_reason="cancelled"), JobStats()

    def upkeep(self) -> None:
        pass

    def close(self) -> None:
        pass


def work(url: str, folder: Path, model: str, name: str, leases: Leases) -> None:
    """A worker's process. folder: for its outbox and its starts."""
    times = {"lease_seconds": leases.lease, "heartbeat_seconds": leases.heartbeat}
    settings = Settings(redis_url=url, data_dir=folder, model=model, **times)  # type: ignore[arg-type]
    serve(settings, lambda: WaitingEngine(folder / f"{name}.start"), name=name, host=name, grace_seconds=0)


class Pair:
    """One that runs a request and is killed, and the idle one that takes over."""

    def __init__(self, url: str, folder: Path, number: int, leases: Leases) -> None:
        self._url, self._folder, self._model, self._leases = url, folder, f"model-{number}", leases
        request = GenerationRequest(request_id=request_id(new_batch_id(), 0), prompt="p")
        queue_at(url).enqueue([request], model=self._model, priority="normal")
        self._names = (f"first-{number}", f"second-{number}")
        self.processes: list[BaseProcess] = []
        self.killed_at = 0.0

    def begin(self, place: int) -> None:
        """Start the first worker, or the second one."""
        context = multiprocessing.get_context("forkserver")
        arguments = (self._url, self._folder, self._model, self._names[place], self._leases)
        process = context.Process(target=work, args=arguments, daemon=True)
        process.start()
        self.processes.append(process)

    def kill(self) -> None:
        self.killed_at = time.time()
        self.processes[0].kill()

    def started_at(self, place: int) -> float:
        """When that worker started the request; waits for it. Raises TimeoutError."""
        path = self._folder / f"{self._names[place]}.start"
        end = time.monotonic() + PATIENCE_SECONDS
        while not path.exists():
            if time.monotonic() > end or not self.processes[place].is_alive():
                raise TimeoutError(f"{self._names[place]} did not start the request of {self._model}")
            time.sleep(LOOK_SECONDS)
        return float(path.read_text())


def measure(pairs: int, seed: int, leases: Leases) -> list[float]:
    """Seconds from each kill to the start of the request on the other worker."""
    chance = random.Random(seed)
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory(prefix="mill-", ignore_cleanup_errors=True) as name:
        server = PrivateServer.start(Path(name))
        up_since = time.monotonic()
        found: list[Pair] = []
        try:
            for number in range(pairs):
                found.append(Pair(server.url, Path(name), number, leases))
                found[-1].begin(0)
            for pair in found:
                pair.started_at(0)
                pair.begin(1)
            settled = up_since + leases.settling
            kills = sorted((chance.uniform(0, leases.spread), number) for number in range(pairs))
            began = max(time.monotonic(), settled)
            for at, number in kills:
                time.sleep(max(0.0, began + at - time.monotonic()))
                found[number].kill()
            return [pair.started_at(1) - pair.killed_at for pair in found]
        finally:
            for process in (process for pair in found for process in pair.processes):
                process.kill()
                process.join()
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=36, help="of workers, each of them for one hand-over")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the kills")
    parser.add_argument("--small", action="store_true", help="leases of 2 s: shows that it runs, not how fast")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    leases = SMALL if options.small else FLEET
    seconds = sorted(measure(options.pairs, options.seed, leases))
    figures: dict[str, float] = {"median": statistics.median(seconds), "min": seconds[0], "max": seconds[-1]}
    rows: list[list[Any]] = [
        [f"kill to start elsewhere, {name}", len(seconds), value, "s", TARGET_SECONDS if name == "max" else None]
        for name, value in figures.items()
    ]
    print(table(HEADINGS, rows))
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows, "seconds": [round(one, 2) for one in seconds]}))
    sys.exit(seconds[-1] > TARGET_SECONDS)


if __name__ == "__main__":
    main()
