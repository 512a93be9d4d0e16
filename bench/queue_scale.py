"""What the queue and the ledger cost with many requests: submission, overhead a request, recording, status, results.

A real server (the private one of `cidermill run`) on a unix socket, a real ledger in a temporary folder, prompts of
2 kB. Each measure runs in a process of its own, so that its peak of memory is its own. `--only` picks measures by name.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.queue.connection import connect
from api.queue.server import PrivateServer
from bench import queue_measures as measures
from bench.report import save, table

HEADINGS = ["measure", "requests", "value", "unit", "target"]
MEASURES = ("submit", "overhead", "record", "status", "results")

Row = list[Any]


@dataclass(frozen=True)
class Sizes:
    """Requests of each measure. submit, results: a small and a large number, whose memory is compared."""

    submit: tuple[int, int]
    overhead: int
    record: int
    status: int
    results: tuple[int, int]


FULL = Sizes(submit=(10_000, 100_000), overhead=2000, record=20_000, status=1_000_000, results=(10_000, 100_000))
SMALL = Sizes(submit=(20, 200), overhead=20, record=200, status=500, results=(20, 200))


def in_a_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


@contextmanager
def station() -> Iterator[tuple[Path, PrivateServer]]:
    """A data directory and its server, both new."""
    with tempfile.TemporaryDirectory(prefix="mill-", ignore_cleanup_errors=True) as folder:
        server = PrivateServer.start(Path(folder))
        try:
            yield Path(folder), server
        finally:
            server.stop()


def submission(sizes: Sizes) -> Iterator[Row]:
    peaks, server_peaks = [], []
    for requests in sizes.submit:
        with station() as (folder, server):
            measures.write_prompts(folder / "prompts.jsonl", requests)
            found = in_a_process(measures.submit, folder, server.url)
            server_peaks.append(connect(server.url).info("memory")["used_memory_peak"] / 2**20)
        peaks.append(found["peak_mb"])
        target = 20 if requests == 100_000 else None
        yield ["submit", requests, found["seconds"], "s", target]
        for stage, seconds in found["stages"].items():
            yield [f"submit: until the end of {stage}", requests, seconds, "s", None]
        yield ["submit: another writer of the ledger waits at most", requests, found["longest_wait"], "s", 1]
    yield ["submit: peak memory over that of the small batch", sizes.submit[-1], peaks[-1] / peaks[0], "x", None]
    yield ["submit: peak memory", sizes.submit[-1], peaks[-1], "MB", None]
    ratio = server_peaks[-1] / server_peaks[0]
    yield ["submit: the server's peak over that of the small batch", sizes.submit[-1], ratio, "x", None]
    yield ["submit: the server's peak", sizes.submit[-1], server_peaks[-1], "MB", None]


def overhead(sizes: Sizes) -> Iterator[Row]:
    with station() as (folder, server):
        found = in_a_process(measures.overhead, folder, server.url, sizes.overhead)
    for share, target in (("median", 5), ("p95", None), ("max", None)):
        yield [f"overhead: end of a request to start of the next, {share}", sizes.overhead, found[share], "ms", target]


def recording(sizes: Sizes) -> Iterator[Row]:
    with station() as (folder, server):
        found = in_a_process(measures.record, folder, server.url, sizes.record)
    yield ["record: results from the stream into the ledger", sizes.record, found["rate"], "1/s", 5000]


def asking(sizes: Sizes) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        measures.fill(Path(folder), sizes.status)
        for query, target in (("batches", 100), ("batch", 100), ("stats", 100)):
            yield [
                f"{query}: the query",
                sizes.status,
                in_a_process(measures.ask, Path(folder), query)["ms"],
                "ms",
                target,
            ]
        for command in ("status", "stats"):
            yield [f"{command}: the command", sizes.status, measures.command_ms(Path(folder), command), "ms", None]


def results(sizes: Sizes) -> Iterator[Row]:
    peaks = []
    for requests in sizes.results:
        with tempfile.TemporaryDirectory(prefix="mill-") as folder:
            measures.fill(Path(folder), requests)
            found = in_a_process(measures.write_answers, Path(folder))
        peaks.append(found["peak_mb"])
        yield ["results: answers written", requests, found["rate"], "1/s", None]
    yield ["results: peak memory over that of the small batch", sizes.results[-1], peaks[-1] / peaks[0], "x", None]
    yield ["results: peak memory", sizes.results[-1], peaks[-1], "MB", None]


RUN: dict[str, Callable[[Sizes], Iterator[Row]]] = dict(
    zip(MEASURES, (submission, overhead, recording, asking, results), strict=True)
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--requests", type=int, help="submit so many in place of 100,000")
    parser.add_argument("--small", action="store_true", help="few requests: shows that it runs, not how fast")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    sizes = SMALL if options.small else FULL
    if options.requests:
        sizes = Sizes((sizes.submit[0], options.requests), *list(vars(sizes).values())[1:])
    rows: list[Row] = []
    for name in options.only:
        for row in RUN[name](sizes):
            rows.append(row)
            print(table(HEADINGS, [row]).splitlines()[-1], flush=True)
    print(table(HEADINGS, rows))
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows}))
    sys.exit(0)


if __name__ == "__main__":
    main()
