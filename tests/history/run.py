"""Run a fleet under faults, then check its history: `python -m tests.history.run --seconds 60 --seed 1`.

Ends with 1 when a rule is broken, or a hand-over took longer than it may without an outage that explains it; the report
says which, and by which request. The folder of such a run stays.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis import Redis

from tests.history import checker
from tests.history.control import Journal
from tests.history.fleet import POLL_SECONDS, Fleet, Sizes
from tests.history.history import History, notes_in
from tests.history.producer import PASSING, Producer
from tests.history.schedule import PHASES, SHARED_KINDS, WORKER_KINDS, Fault, Pace, plan

SHORT = Sizes()
LONG = Sizes(
    workers=6,
    lease=45.0,
    heartbeat=5.0,
    housekeeping=5.0,
    settling=60.0,
    seconds_per_token=0.1,
    batch=12,
    backlog=0,
    look=3.0,
)
"""The fleet's own defaults; what is handed over waits for nobody's turn."""
SHORT_PACE = Pace(worker=2.0, shared=7.0)
LONG_PACE = Pace(worker=4.0, shared=240.0)
LONGEST_HANDOVER_SECONDS = 60.0
"""From the death of a worker to the start of its request elsewhere, but for outages; with short leases as with long."""
LONGEST = 3
"""Times the asked duration after which a fleet that is too slow, or does not start at all, has failed."""


class Run:
    """The faults of a plan, struck at their times; `later` holds what ends those that last."""

    def __init__(self, folder: Path, sizes: Sizes, seed: int) -> None:
        self.journal = Journal(folder / "runner.jsonl", "runner")
        self.folder, self.sizes = folder, sizes
        self.fleet = Fleet(folder, sizes, self.journal)
        self.producer = Producer(self.fleet.data_dir / "ledger.sqlite3", seed, sizes.settling)
        self.struck: Counter[str] = Counter()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._server_busy = False
        self._to_resume = False
        self._looked_at = 0.0

    def go(self, faults: Sequence[Fault], seconds: float, requests: int, drain_seconds: float) -> History:
        """Until all faults have struck, the time is over and enough was handed in; then until all is final."""
        start, pending = time.monotonic(), list(faults)

        def unfinished() -> bool:
            early = time.monotonic() - start < seconds or len(self.producer.accepted) < requests
            return early or bool(pending or self._later)

        try:
            self.fleet.start()
            while unfinished():
                if time.monotonic() - start > LONGEST * seconds + drain_seconds:
                    raise TimeoutError(f"{len(self.producer.accepted)} of {requests} requests; see {self.folder}")
                now = time.monotonic() - start
                while pending and pending[0].at <= now and self._strike(pending[0]):
                    pending.pop(0)
                self._tick(feeding=True)
            self.fleet.calm()
            deadline = time.monotonic() + drain_seconds
            while time.monotonic() < deadline and (self._to_resume or self.producer.open_count()):
                self._tick(feeding=False)
                time.sleep(0.1)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # another one would leave processes behind
            self.fleet.close()
        return self._history()

    def _tick(self, *, feeding: bool) -> None:
        self.fleet.tend()
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()
        if not self._server_busy and now - self._looked_at > self.sizes.look:
            self._looked_at = now
            self._produce(feeding)
        time.sleep(POLL_SECONDS)

    def _produce(self, feeding: bool) -> None:
        try:
            with self.fleet.connect() as redis:
                if self._to_resume:
                    self.producer.resume(redis)
                    self._to_resume = False
                if feeding and self._hungry(redis):
                    self.producer.enter(self.sizes.batch, redis)
        except PASSING:
            self._to_resume = True

    def _hungry(self, redis: Redis) -> bool:
        if self.sizes.backlog:
            return self.producer.open_count() < self.sizes.backlog
        return not self.producer.waiting(redis)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def _strike(self, fault: Fault) -> bool:
        """Whether it has struck; a fault of the server waits for the end of another."""
        on_server = fault.kind.startswith("redis_")
        if on_server and self._server_busy:
            return False
        getattr(self, f"_{fault.kind}")(fault)
        self.struck[f"kill {fault.phase}" if fault.kind == "kill" else fault.kind] += 1
        return True

    def _kill(self, fault: Fault) -> None:
        self.fleet.set_trap(str(fault.target), fault.phase)

    def _stop(self, fault: Fault) -> None:
        self.fleet.workers[fault.target].stop(fault.seconds)

    def _term(self, fault: Fault) -> None:
        self.fleet.workers[fault.target].terminate()

    def _term_twice(self, fault: Fault) -> None:
        self._term(fault)
        process = self.fleet.workers[fault.target].popen
        self._after(0.1, lambda: process.terminate() if process.poll() is None else None)

    def _redis_kill(self, fault: Fault) -> None:
        self._server_down(fault, lose=False)

    def _redis_wipe(self, fault: Fault) -> None:
        self._server_down(fault, lose=True)

    def _server_down(self, fault: Fault, *, lose: bool) -> None:
        self._server_busy = True
        self.fleet.kill_server()
        if lose:
            self.fleet.wipe()

        def up() -> None:
            self.fleet.start_server()
            self._server_is_back()  # what it has lost, the recorder queues again by itself

        self._after(fault.seconds, up)

    def _redis_pause(self, fault: Fault) -> None:
        self._server_busy = True
        self.fleet.pause_server(fault.seconds)
        self._after(fault.seconds, self._server_is_back)

    def _redis_hang(self, fault: Fault) -> None:
        self._server_busy = True
        self.fleet.hang_server()

        def up() -> None:
            self.fleet.wake_server()
            self._server_is_back()

        self._after(fault.seconds, up)

    def _server_is_back(self) -> None:
        self.fleet.server_is_back()
        self._server_busy = False

    def _ledger_full(self, fault: Fault) -> None:
        self._switch("ledger-full", fault.seconds)

    def _outbox_full(self, fault: Fault) -> None:
        self._switch("outbox-full", fault.seconds)

    def _switch(self, name: str, seconds: float) -> None:
        path = self.fleet.control / name
        path.touch()
        self._after(seconds, lambda: path.unlink(missing_ok=True))

    def _recorder_kill(self, fault: Fault) -> None:
        self.fleet.set_trap("recorder-0", "committed")

    def _second_recorder(self, fault: Fault) -> None:
        self.fleet.add_recorder()
        self._after(fault.seconds, self.fleet.remove_recorder)

    def _cancel(self, _: Fault) -> None:
        try:
            with self.fleet.connect() as redis:
                self.producer.cancel(redis)
        except PASSING:
            self._to_resume = True

    def _cancel_cut(self, _: Fault) -> None:
        self.producer.begin_cancelling()

    def _expiry(self, fault: Fault) -> None:
        try:
            with self.fleet.connect() as redis:
                self.producer.enter(self.sizes.batch, redis, fault.seconds)
        except PASSING:
            self._to_resume = True

    def _history(self) -> History:
        notes = notes_in([self.folder / "runner.jsonl", *self.fleet.journals.glob("*.jsonl")])
        rows, batches = self.producer.rows(), self.producer.batch_rows()
        return History(self.producer.accepted, rows, batches, notes, 1.5 * self.sizes.lease)


def report(history: History, struck: Counter[str], seed: int, seconds: float) -> dict[str, Any]:
    violations, found = checker.check(history), checker.handovers(history)
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "requests": len(history.accepted),
        "states": dict(sorted(Counter(row.state for row in history.rows.values()).items())),
        "late_results": sum(kind == "late" for row in history.rows.values() for kind, _, _ in row.events),
        "starts": len(history.of_kind("start")),
        "kills": dict(sorted(Counter(note.phase for note in history.of_kind("kill")).items(), key=str)),
        "deaths": len(history.of_kind("death")),
        "faults": dict(sorted(struck.items())),
        "handovers": checker.summary(found),
        "slow_handovers": [asdict(one) for one in checker.slow(found, LONGEST_HANDOVER_SECONDS)],
        "violations": [asdict(violation) for violation in violations],
    }


def missing(told: dict[str, Any]) -> list[str]:
    """Kinds of fault that did not strike, and points at which no process was killed."""
    kinds = [*(f"kill {phase}" for phase in PHASES), *WORKER_KINDS, *SHARED_KINDS]
    points = (*PHASES, "committed", "poison")
    unstruck = [kind for kind in kinds if not told["faults"].get(kind)]
    return [*unstruck, *(f"no kill at {point}" for point in points if not told["kills"].get(point))]


def as_text(told: dict[str, Any]) -> str:
    lines = [f"{name}: {json.dumps(value)}" for name, value in told.items() if name != "violations"]
    broken = [f"  {one['rule']}: {one['request_id']}: {one['says']}" for one in told["violations"]]
    return "\n".join([*lines, f"violations: {len(broken)}", *broken])


def main() -> int:
    arguments = _arguments()
    sizes = LONG if arguments.long else SHORT
    pace = LONG_PACE if arguments.long else SHORT_PACE
    faults = plan(arguments.seed, seconds=arguments.seconds, workers=sizes.workers, lease=sizes.lease, pace=pace)
    runtime = tempfile.mkdtemp(prefix="cm-", dir="/tmp")  # a socket's path is short
    os.environ |= {"XDG_RUNTIME_DIR": runtime, "CIDERMILL_CONFIG": f"{runtime}/none.toml"}
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"run-{arguments.seed}-", dir=arguments.out))
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the fleet goes with its runner
    run = Run(folder, sizes, arguments.seed)
    history = run.go(faults, arguments.seconds, arguments.requests, 60 + 4 * sizes.lease)
    shutil.rmtree(runtime, ignore_errors=True)
    told = report(history, run.struck, arguments.seed, time.monotonic() - begun)
    (arguments.out / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    (arguments.out / "report.txt").write_text(as_text(told) + "\n")
    print(as_text(told))
    left_out = missing(told) if arguments.every_fault else []
    if left_out:
        print(f"these faults did not strike: {', '.join(left_out)}; give more --seconds", file=sys.stderr)
    if told["violations"] or told["slow_handovers"] or left_out:
        print(f"logs and journals: {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults strike")
    parser.add_argument("--requests", type=int, default=2000, help="requests at least")
    parser.add_argument("--seed", type=int, default=None, help="of faults and requests; default: another each time")
    parser.add_argument("--long", action="store_true", help="leases of 45 s, as a fleet has them")
    parser.add_argument("--every-fault", action="store_true", help="fail, too, when a kind of fault did not strike")
    parser.add_argument("--out", type=Path, default=Path(".cache/history"), help="folder of the report")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(10**6)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
