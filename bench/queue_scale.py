"""What the queue and the ledger cost with many requests: submission, cancellation, refusal, overhead a request,
recording, status, results.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api.queue.connection import connect
from api.queue.server import PrivateServer
from bench import queue_measures as measures
from bench.report import save, table

HEADINGS = ["measure", "requests", "value", "unit", "target"]
MEASURES = ("submit", "refuse", "overhead", "record", "status", "results")
MILLION = 1_000_000

Row = list[Any]


@dataclass(frozen=True)
class Sizes:
    """Requests of each measure. submit, refuse, results: a small number and larger ones, whose memory is compared."""

    submit: tuple[int, ...]
    refuse: tuple[int, ...]
    overhead: int
    record: int
    status: int
    results: tuple[int, ...]


FULL = Sizes(
    submit=(10_000, 100_000),
    refuse=(10_000, 100_000),
    overhead=2000,
    record=20_000,
    status=MILLION,
    results=(10_000, 100_000),
)
SMALL = Sizes(submit=(20, 200), refuse=(20, 200), overhead=20, record=200, status=500, results=(20, 200))


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
    server_peaks = []
    for requests in sizes.submit:
        with station() as (folder, server):
            measures.write_prompts(folder / "prompts.jsonl", requests)
            found = in_a_process(measures.submit, folder, server.url)
            server_peaks.append(connect(server.url).info("memory")["used_memory_peak"] / 2**20)
            cancelled = in_a_process(measures.cancel, folder, server.url)
        target = 20 if requests == 100_000 else None
        yield ["submit", requests, found["seconds"], "s", target]
        for stage, seconds in found["stages"].items():
            yield [f"submit: until the end of {stage}", requests, seconds, "s", None]
        yield ["submit: another writer of the ledger waits at most", requests, found["longest_wait"], "s", 1]
        yield ["submit: peak memory", requests, found["peak_mb"], "MB", None]
        yield ["submit: the server's peak", requests, server_peaks[-1], "MB", None]
        yield ["cancel", requests, cancelled["seconds"], "s", None]
        yield ["cancel: peak memory", requests, cancelled["peak_mb"], "MB", None]


def refusal(sizes: Sizes) -> Iterator[Row]:
    for requests in sizes.refuse:
        with tempfile.TemporaryDirectory(prefix="mill-") as folder:
            found = in_a_process(measures.refuse, Path(folder), requests)
        yield ["refuse: a file without a good line", requests, found["seconds"], "s", None]
        yield ["refuse: peak memory", requests, found["peak_mb"], "MB", None]


def overhead(sizes: Sizes) -> Iterator[Row]:
    with station() as (folder, server):
        found = in_a_process(measures.overhead, folder, server.url, sizes.overhead)
    for share, target in (("median", 5), ("p95", None), ("max", None)):
        yield [f"overhead: end of a request to start of the next, {share}", sizes.overhead, found[share], "ms", target]
    yield ["overhead: processor time of the worker", sizes.overhead, found["processor_ms"], "ms", None]
    yield ["overhead: round trips to Redis", sizes.overhead, found["round_trips"], "a request", None]


def recording(sizes: Sizes) -> Iterator[Row]:
    with station() as (folder, server):
        found = in_a_process(measures.record, folder, server.url, sizes.record)
    yield ["record: results from the stream into the ledger", sizes.record, found["rate"], "1/s", 5000]


def asking(sizes: Sizes) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        measures.fill(Path(folder), sizes.status)
        for query in ("batches", "batch", "stats"):
            found = in_a_process(measures.ask, Path(folder), query)
            yield [f"{query}: the query", sizes.status, found["ms"], "ms", 100]
            yield [f"{query}: peak memory", sizes.status, found["peak_mb"], "MB", None]
        for command in ("status", "stats"):
            own = in_a_process(measures.command, Path(folder), command)["ms"]
            yield [f"{command}: processor time of the command, without imports", sizes.status, own, "ms", 100]
            whole = measures.process_ms(Path(folder), command)
            yield [f"{command}: from the start of Python to its end", sizes.status, whole, "ms", None]


def results(sizes: Sizes) -> Iterator[Row]:
    for requests in sizes.results:
        with tempfile.TemporaryDirectory(prefix="mill-") as folder:
            measures.fill(Path(folder), requests)
            found = in_a_process(measures.write_answers, Path(folder))
        yield ["results: answers written", requests, found["rate"], "1/s", None]
        yield ["results: peak memory", requests, found["peak_mb"], "MB", None]


RUN: dict[str, Callable[[Sizes], Iterator[Row]]] = dict(
    zip(MEASURES, (submission, refusal, overhead, recording, asking, results), strict=True)
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--million", action="store_true", help="submit, refuse and write a million as well")
    parser.add_argument("--small", action="store_true", help="few requests: shows that it runs, not how fast")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    sizes = SMALL if options.small else FULL
    if options.million:
        more = {name: (*getattr(sizes, name), MILLION) for name in ("submit", "refuse", "results")}
        sizes = replace(sizes, **more)
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
