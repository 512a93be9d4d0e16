"""What strangers write into Redis reaches the operator's terminal as visible characters, never as commands to it."""

import io
import json
import logging

from mill import Mill, json_lines
from test_terminal import on_terminal

from api.queue.connection import connect
from api.schemas import WorkerInfo
from cli.log import LineFormatter

EVIL = "\x1b]0;owned\x07\x9b2J\x7f[red]x"
SHOWN = "␛]0;owned␇\ufffd2J␡[red]x"
COMMANDS = ("\x1b]", "\x07", "\x9b", "\x7f")


def test_status_of_hostile_workers(mill: Mill) -> None:
    redis = connect(mill.start_redis())
    assert mill.run("submit", mill.input([{"prompt": "a"}])).returncode == 0
    info = WorkerInfo(
        name=EVIL,
        model=mill.model,
        state="busy",
        host=EVIL,
        pid=1,
        chip=EVIL,
        drafter=EVIL,
        verification=EVIL,
        request_id=EVIL,
        tail=EVIL,
        seen_at=0,
    )
    redis.sadd("cidermill:workers", EVIL, "garbage")
    redis.set(f"cidermill:worker:{EVIL}", info.model_dump_json())
    redis.set("cidermill:worker:garbage", EVIL)
    redis.rpush("rq:queue:x", EVIL)
    code, shown = on_terminal(mill, "status", "latest")
    assert code == 0
    assert SHOWN in shown
    assert "1 entries of live workers are damaged or forged" in shown
    assert all(command not in shown for command in COMMANDS)
    piped = mill.run("status", "latest")
    assert piped.returncode == 0
    assert all(command not in piped.stdout + piped.stderr for command in COMMANDS)
    assert json_lines(piped.stdout)[2]["name"] == EVIL


def test_error_that_quotes_names_from_redis(mill: Mill) -> None:
    redis = connect(mill.start_redis())
    redis.sadd("rq:queues", f"rq:queue:{EVIL}:normal")
    redis.rpush(f"rq:queue:{EVIL}:normal", "x")
    code, shown = on_terminal(mill, "worker", "--model", "smollm2")
    assert code == 8
    assert SHOWN in shown
    assert all(command not in shown for command in COMMANDS)


def test_status_where_the_list_of_workers_is_no_list(mill: Mill) -> None:
    redis = connect(mill.start_redis())
    assert mill.run("submit", mill.input([{"prompt": "a"}])).returncode == 0
    redis.set("cidermill:workers", json.dumps([EVIL]))
    done = mill.run("status", "latest")
    assert done.returncode == 0
    assert "somebody else wrote it" in done.stderr


def test_a_log_line_is_printable() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(stamped=False))
    handler.emit(logging.LogRecord("x", logging.WARNING, "", 0, "worker %s", (EVIL,), None))
    assert stream.getvalue() == f"worker {SHOWN}\n"
