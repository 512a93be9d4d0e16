"""What does it save to serve prompts that begin alike together? The same requests in both orders, in one run.

Requests of two batches with a long system prompt each lie mixed in a queue of a real server. One engine's weights
answer them greedily, taken once in the order of arrival and once in that of api/queue/prefix_order.py; each of them
without room for snapshots of earlier prompts, as on a machine whose memory the model fills, and with it. What counts is
the part of the prompts that comes from the cache; the time follows from it. Before that, what taking a request costs
with 10,000 waiting.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from redis import Redis

from api.queue.connection import connect
from api.queue.safe_queue import SafeQueue
from api.schemas import GenerationRequest, GenerationResult
from bench.prefix import QUESTIONS, RULES, request
from bench.queue_measures import queue_at
from bench.queue_scale import station
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec

HEADINGS = ["snapshots", "order", "changes", "prompt tokens", "from the cache", "computed", "s", "CPU s", "same texts"]
COSTS = ["waiting", "order", "changes of 1000", "us to take a request", "of them on the server"]
QUEUE = "bench:normal"
ORDERS = ("arrival", "prefix")
TOKENS = ("prompt_tokens", "cached_prompt_tokens")
SUBJECTS = ("library", "hotel")
WAITING, TAKEN = 10_000, 1000


def mixed(requests: int, rules: int, max_tokens: int) -> list[GenerationRequest]:
    """Questions about one subject and the other in turn; the rules stand in their system prompts."""
    systems = [f"You answer questions of the guests of a {subject}. {' '.join(RULES[:rules])}" for subject in SUBJECTS]
    return [
        request(
            f"mixed-{number}",
            [
                {"role": "system", "content": systems[number % 2]},
                {"role": "user", "content": QUESTIONS[number // 2 % len(QUESTIONS)]},
            ],
            max_tokens,
        )
        for number in range(requests)
    ]


def taken(connection: Redis, order: str) -> Iterator[tuple[GenerationRequest, float]]:
    """All that waits, with the seconds that taking it took. A worker that remembers nothing takes the head."""
    queue = SafeQueue(QUEUE, connection)
    while True:
        if order == "arrival":
            queue.taken_last.key = ""
        began = time.perf_counter()
        found = SafeQueue.dequeue_any([queue], None, connection)
        seconds = time.perf_counter() - began
        if found is None:
            return
        yield GenerationRequest.model_validate(found[0].args[0]), seconds


def changes(served: list[GenerationRequest]) -> int:
    """How often a request has another system prompt than the one before it."""
    prompts = [one.messages[0].content for one in served if one.messages]
    return sum(one != other for one, other in itertools.pairwise(prompts))


def answer_all(engine: Engine, url: str, requests: list[GenerationRequest], order: str) -> list[GenerationResult]:
    """Everything through the queue, by an engine whose caches are empty; in the order of serving."""
    connection = connect(url)
    connection.flushall()
    queue_at(url).enqueue(requests, model="bench", priority="normal")
    return [engine.generate(asked)[0] for asked, _ in taken(connection, order)]


def saved(engine: Engine, url: str, requests: list[GenerationRequest]) -> Iterator[list[object]]:
    asked = {one.request_id: one for one in requests}
    first: dict[str, list[int]] = {}
    for snapshots, budget in (("none", 0), ("as by default", None)):
        for order in ORDERS:
            fresh = engine.with_options(replace(engine.options, prefix_cache_bytes=budget))
            began, began_cpu = time.perf_counter(), time.process_time()
            results = answer_all(fresh, url, requests, order)
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
            usages = [result.usage for result in results if result.usage is not None]
            prompt, cached = (sum(getattr(one, name) for one in usages) for name in TOKENS)
            texts = {result.request_id: result.token_ids for result in results}
            first = first or texts
            changed = changes([asked[result.request_id] for result in results])
            yield [snapshots, order, changed, prompt, cached, prompt - cached, seconds, cpu_seconds, texts == first]


def cost(url: str, order: str) -> list[object]:
    connection = connect(url)
    connection.flushall()
    queue_at(url).enqueue(mixed(WAITING, 8, 16), model="bench", priority="normal")
    connection.config_resetstat()
    served, seconds = zip(*itertools.islice(taken(connection, order), TAKEN), strict=True)
    on_server = connection.info("commandstats")["cmdstat_eval"]["usec_per_call"]
    return [WAITING, order, changes(list(served)), 1e6 * statistics.median(seconds), on_server]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--rules", type=int, default=6, help="sentences of a system prompt, of about 34 tokens each")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    with station() as (_, server):
        costs = [cost(server.url, order) for order in ORDERS]
        print(table(COSTS, costs), flush=True)
        # Without speculation, whose gains differ from run to run.
        engine = Engine.load(ModelSpec.parse(options.model), EngineOptions(options.data_dir, max_tree_nodes=1), print)
        rows = []
        for row in saved(engine, server.url, mixed(options.requests, options.rules, options.max_tokens)):
            rows.append(row)
            print(row, flush=True)
    print(table(HEADINGS, rows))
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows, "cost_headings": COSTS, "costs": costs}))


if __name__ == "__main__":
    main()
