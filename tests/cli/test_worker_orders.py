"""Commands about workers: the fleet as it is, and orders to those that run."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from mill import Mill, json_lines, wait_until
from redis import Redis
from test_fleet_server import FleetServer
from test_terminal import on_terminal

from api.queue import deaths, orders
from api.queue.connection import connect
from api.queue.deaths import Death
from api.queue.last_seen import SEEN_SECONDS
from api.queue.orders import Order
from api.queue.presence import announce, live_workers
from api.schemas import WorkerInfo, WorkerState
from cli.fleet_view import unserved
from cli.main import app

REPOSITORY = Path(__file__).parents[2]


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def fleet(mill: Mill) -> Mill:
    mill.start_redis()
    return mill


@pytest.fixture
def start(fleet: Mill) -> Iterator[Start]:
    """Starts real worker processes with a scripted engine, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(name: str, seconds_per_token: float) -> "subprocess.Popen[bytes]":
        settings = {
            "redis_url": fleet.environment["CIDERMILL_REDIS_URL"],
            "data_dir": str(fleet.data_dir),
            "model": fleet.model,
            "lease_seconds": 2,
            "heartbeat_seconds": 0.2,
        }
        command = [sys.executable, "-m", "tests.worker.queue.scripted_worker", json.dumps(settings)]
        command += [json.dumps({"name": name, "host": f"host-of-{name}"}), str(seconds_per_token)]
        with (fleet.folder / "worker.log").open("ab") as log:
            command.append(str(fleet.folder / "engine.log"))
            started.append(subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait(10)


def redis_of(mill: Mill) -> Redis:
    return connect(mill.environment["CIDERMILL_REDIS_URL"])


def wait_for_states(mill: Mill, **states: str) -> None:
    redis = redis_of(mill)
    wait_until(lambda: {info.name: info.state for info in live_workers(redis)} == states, f"{states}")


def info(name: str, model: str, state: WorkerState = "idle", **more: Any) -> WorkerInfo:
    given = {"host": "mini", "pid": 1, "chip": "M4", "drafter": "suffix", "verification": "tree", "seen_at": 1.0}
    return WorkerInfo(name=name, model=model, state=state, **{**given, **more})


def test_workers_are_paused_resumed_and_drained(fleet: Mill, start: Start) -> None:
    submitted = fleet.run("submit", fleet.input([{"prompt": str(index), "max_tokens": 30} for index in range(3)]))
    assert submitted.returncode == 0, submitted.stderr
    worker = start("w", seconds_per_token=0.05)
    wait_for_states(fleet, w="busy")
    paused = fleet.run("worker", "pause", "--all", "--model", fleet.model, "--wait")
    assert paused.returncode == 0, paused.stderr
    row = {"name": "w", "host": "host-of-w", "model": fleet.model}
    assert json_lines(paused.stdout) == [{**row, "order": "pause", "state": "paused"}]
    assert paused.stderr == "waiting for 1 worker\n"
    (shown,) = json_lines(fleet.run("workers").stdout)
    assert (shown["state"], shown["completed"], shown["request_id"], shown["kernels"]) == ("paused", 1, None, "stock")
    said = f"no worker takes requests of {fleet.model} (1 paused); let them: "
    said += f"cidermill worker resume --all --model {fleet.model}\n"
    no_recorder = "nothing takes results home into this ledger; start on this machine: cidermill record\n"
    assert fleet.run("status", "latest").stderr == said + no_recorder
    assert fleet.run("status").stderr == f"2 requests for {fleet.model}: {said}"

    resumed = fleet.run("worker", "resume", "w", "--wait")
    assert json_lines(resumed.stdout)[0]["state"] in ("idle", "busy")
    wait_for_states(fleet, w="busy")
    drained = fleet.run("worker", "drain", "w", "--wait")
    assert json_lines(drained.stdout) == [{**row, "order": "drain", "state": "ended"}]
    assert worker.wait(10) == 0
    assert len((fleet.folder / "engine.log").read_text().splitlines()) == 2
    assert fleet.run("workers").stdout == ""


def test_the_fleet_is_shown_with_those_that_died_and_machines_that_are_out(fleet: Mill) -> None:
    redis = redis_of(fleet)
    announce(redis, info("b", "m", "busy", request_id="batch_1-7", decode_tps=41.256, kernels="stock", completed=3), 60)
    announce(redis, info("a", "other", "out", tail="secret"), 60)
    for name, seconds in (("dead", 200), ("long-dead", 7200)):
        announce(redis, info(name, "m", "busy", request_id="batch_1-5", host="studio"), 60)
        redis.delete(f"cidermill:worker:{name}")
        redis.pexpire(f"cidermill:seen:{name}", 1000 * (SEEN_SECONDS - seconds))
    with redis.pipeline() as pipeline:
        for request in ("batch_1-1", "batch_1-2"):
            deaths.note(pipeline, "studio", Death(request, "dead", 0, 0))
        pipeline.execute()
    rows = json_lines(fleet.run("workers").stdout)
    assert [(row["name"], row["state"], round(row["last_seen"], -1), row["deaths"]) for row in rows] == [
        ("a", "out", 0, 0),
        ("b", "busy", 0, 0),
        ("dead", "dead", 200, 2),
        ("long-dead", "dead", 7200, 2),
    ]
    assert "secret" not in json.dumps(rows)
    assert [row["name"] for row in json_lines(fleet.run("workers", "--model", "other").stdout)] == ["a"]
    code, shown = on_terminal(fleet, "workers")
    assert code == 0
    heading, _, busy, dead, _ = [" ".join(line.split()) for line in shown.splitlines()]
    assert heading == ("worker host chip model drafter kernels state request last seen tok/s completed deaths in a row")
    assert busy.startswith("b mini M4 m suffix stock busy batch_1-7 ")
    assert busy.endswith(" ago 41.26 3 0")
    assert dead.startswith("dead studio M4 m suffix dead batch_1-5 3 min 2")


def test_resume_lets_the_machine_of_a_worker_in_again(fleet: Mill) -> None:
    redis = redis_of(fleet)
    announce(redis, info("a", "m", "out"), 60)
    with redis.pipeline() as pipeline:
        for host, request in [("mini", "1"), ("mini", "2"), ("mini", "3"), ("studio", "1")]:
            deaths.note(pipeline, host, Death(request, "w", 0, 0))
        pipeline.execute()
    redis.rpush(orders.order_key("a"), "forged")
    done = fleet.run("worker", "resume", "a", "a")
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json_lines(done.stdout)] == ["a"]
    assert redis.get(orders.order_key("a")) == b"work"
    assert redis.keys("cidermill:deaths:*") == [b"cidermill:deaths:studio"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["drain", "nobody"], 8, "no live worker is named nobody; cidermill workers shows the names"),
        (["pause", "a", "nobody"], 8, "no live worker is named nobody"),
        (["pause", "--all", "--model", "unheard"], 8, "there is no live worker of unheard; cidermill workers shows"),
        (["pause", "leaving"], 1, "worker leaving is draining and ends soon; start it again"),
        (["drain"], 2, "give names of workers, or --all"),
        (["drain", "a", "--all"], 2, "names of workers and --all exclude each other"),
        (["drain", "a", "--model", "m"], 2, "--model goes with --all"),
        (["--model", "m", "drain", "a"], 2, "options of drain go behind it"),
        (["fire", "a"], 2, "No such command 'fire'"),
    ],
)
def test_an_order_that_reaches_nobody_says_what_to_do(
    fleet: Mill, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, says: str
) -> None:
    redis = redis_of(fleet)
    announce(redis, info("a", "m"), 60)
    announce(redis, info("leaving", "m", "draining"), 60)
    for name, value in fleet.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=r".") as caught:  # usage errors are of typer's own kind
        typer.main.get_command(app).main(["worker", *arguments], standalone_mode=False)
    assert getattr(caught.value, "exit_code", None) == code
    assert says in str(getattr(caught.value, "message", caught.value))
    assert redis.keys("cidermill:order:*") == []


def test_waiting_ends_when_the_worker_dies(fleet: Mill) -> None:
    redis = redis_of(fleet)
    announce(redis, info("a", "m", "busy"), 60)
    waiting = fleet.start("worker", "drain", "a", "--wait")
    wait_until(lambda: waiting.stderr == "waiting for 1 worker\n", "the command to wait")
    assert redis.get(orders.order_key("a")) == b"drain"
    redis.delete("cidermill:worker:a")
    assert waiting.wait() == 8
    assert "a died meanwhile, or ended; what it ran goes to another worker" in waiting.stderr


def test_without_a_redis_there_is_nothing_to_show(mill: Mill) -> None:
    done = mill.run("workers")
    assert done.returncode == 4
    assert "give --redis URL" in done.stderr


def test_a_producer_looks_and_the_coordinator_gives_orders(mill: Mill) -> None:
    server = FleetServer(mill, tls=False)
    try:
        announce(connect(server.url("worker")), info("a", "m"), 60)
        refused = mill.run("worker", "pause", "a", env=server.environment("producer"))
        assert refused.returncode == 4
        assert "this Redis user may not give orders; use the URL of the coordinator" in refused.stderr
        assert server.admin.keys("cidermill:order:*") == []
        looked = mill.run("workers", env=server.environment("producer"))
        assert (looked.returncode, json_lines(looked.stdout)[0]["name"]) == (0, "a"), looked.stderr
        done = mill.run("worker", "resume", "a", env=server.environment("coordinator"))
        assert done.returncode == 0, done.stderr
        assert server.admin.get(orders.order_key("a")) == b"work"
    finally:
        server.close()


def test_only_those_that_take_requests_serve() -> None:
    live = [
        info("1", "served", "busy"),
        info("2", "loading", "starting"),
        info("3", "out", "out"),
        info("4", "out", "paused"),
        info("5", "leaving", "draining"),
    ]
    demand = {"served": 2, "loading": 1, "out": 3, "leaving": 1, "nobody": 1}
    assert unserved(demand, live) == [
        "1 request for leaving: no live worker serves leaving; start one: cidermill worker --model leaving",
        "1 request for nobody: no live worker serves nobody; start one: cidermill worker --model nobody",
        "3 requests for out: no worker takes requests of out (1 paused, 1 out); "
        "let them: cidermill worker resume --all --model out",
    ]


def test_orders_of_a_known_word_alone_are_obeyed() -> None:
    assert [orders.parse(word) for word in (b"work", b"pause", b"drain", b"")] == [*Order, None]
    for word in (b"Work", b"pause ", b"\xff", b"drain" * 10):
        with pytest.raises(ValueError, match="is not a valid Order"):
            orders.parse(word)
