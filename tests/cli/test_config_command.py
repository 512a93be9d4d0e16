"""Settings: flag > environment > TOML > default, each value with its source, and no password anywhere."""

from pathlib import Path

import psutil
import pytest
from mill import Mill, Row, json_lines, wait_until

from api.queue.connection import connect
from api.settings import Settings

SECRET = "hunter2-is-secret"


def config_file(mill: Mill) -> Path:
    return Path(mill.environment["HOME"]) / ".config" / "cidermill" / "config.toml"


def write_config(mill: Mill, text: str) -> Path:
    path = config_file(mill)
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    return path


def settings(mill: Mill, *flags: str) -> dict[str, Row]:
    """Row of each setting, from the JSON lines that a pipe gets."""
    done = mill.run("config", *flags)
    assert done.returncode == 0, done.stderr
    missing = "" if config_file(mill).exists() else ", which does not exist"
    assert done.stderr == f"file: {config_file(mill)}{missing}\n"
    return {row["name"]: row for row in json_lines(done.stdout)}


def test_every_setting_is_shown_with_its_meaning(mill: Mill) -> None:
    rows = settings(mill)
    assert set(rows) == set(Settings.model_fields)
    assert all(row["description"] for row in rows.values())
    assert (rows["redis_url"]["value"], rows["redis_url"]["source"]) == ("(unset)", "default")


def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default(mill: Mill) -> None:
    everywhere = 'model = "from-file"\ndata_dir = "/from/file"\nmax_attempts = 7\nlease_seconds = 99\n'
    path = write_config(mill, everywhere)
    mill.environment["CIDERMILL_MODEL"] = "from-environment"
    rows = settings(mill, "--model", "from-flag")
    found = {name: (row["value"], row["source"]) for name, row in rows.items()}
    assert found["model"] == ("from-flag", "flag")
    assert found["data_dir"] == (str(mill.data_dir), "environment")
    assert found["lease_seconds"] == ("2.0", "environment")
    assert found["max_attempts"] == ("7", str(path))
    assert found["prefill_chunk"] == ("2048", "default")
    assert settings(mill)["model"]["value"] == "from-environment"
    del mill.environment["CIDERMILL_MODEL"]
    assert settings(mill)["model"]["value"] == "from-file"


def test_another_file_is_named_by_the_environment(mill: Mill) -> None:
    other = mill.folder / "other.toml"
    other.write_text("prefill_chunk = 5\n", "utf-8")
    mill.environment["CIDERMILL_CONFIG"] = str(other)
    done = mill.run("config")
    row = next(row for row in json_lines(done.stdout) if row["name"] == "prefill_chunk")
    assert (row["value"], row["source"]) == ("5", str(other))
    assert done.stderr == f"file: {other}\n"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LEASE_SECONDS", "soon", 'setting lease_seconds (environment): number expected, found "soon"'),
        ("MAX_TREE_NODES", "33", "setting max_tree_nodes (environment): 33 is not at most 32"),
        ("PREFIX_CACHE_MB", "1.5", 'setting prefix_cache_mb (environment): integer expected, found "1.5"'),
        ("MEMORY_LIMIT_GB", "0", "setting memory_limit_gb (environment): 0 is not above 0"),
        ("MEMORY_LIMIT_GB", "inf", 'setting memory_limit_gb (environment): finite number expected, found "inf"'),
        (
            "REQUEST_TIMEOUT_SECONDS",
            "inf",
            'setting request_timeout_seconds (environment): finite number expected, found "inf"',
        ),
        (
            "HEARTBEAT_SECONDS",
            "1.5",
            "settings: heartbeat_seconds 1.5 is more than half of lease_seconds 2; lower the one or raise the other",
        ),
    ],
)
def test_a_bad_value_of_the_environment(mill: Mill, variable: str, value: str, says: str) -> None:
    done = mill.run("status", env={f"CIDERMILL_{variable}": value})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"cidermill: {says}\n"


def test_half_a_lease_is_time_enough_for_a_heartbeat(mill: Mill) -> None:
    assert mill.run("status", env={"CIDERMILL_HEARTBEAT_SECONDS": "1"}).returncode == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_attempts = 0\n", "cidermill: setting max_attempts ({path}): 0 is not at least 1\n"),
        (
            "max_atempts = 3\n",
            "cidermill: setting max_atempts ({path}): there is no such setting; did you mean max_attempts?\n",
        ),
        ("zzz = 3\n", "cidermill: setting zzz ({path}): there is no such setting; there are redis_url, data_dir, "),
        (f"redis_url = ['{SECRET}']\n", "cidermill: setting redis_url ({path}): string expected\n"),
        ("max_attempts: 3\n", "cidermill: {path}: cannot be read as TOML: "),
        ("model = 'caf\udce9'\n", "cidermill: {path}: cannot be read as TOML: "),
    ],
)
def test_a_bad_file(mill: Mill, text: str, says: str) -> None:
    path = write_config(mill, "")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = mill.run("config")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(says.format(path=path))
    assert done.stderr.count("\n") == 1


# Passwords.


def test_config_hides_the_password_of_a_url(mill: Mill) -> None:
    mill.environment["CIDERMILL_REDIS_URL"] = f"rediss://mill:{SECRET}@redis.example:6379/3"
    done = mill.run("config")
    row = next(row for row in json_lines(done.stdout) if row["name"] == "redis_url")
    assert row["value"] == "rediss://mill:***@redis.example:6379/3"
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@127.0.0.1:1/0",
        f"http://mill:{SECRET}@redis.example",
        f"redis://mill:{SECRET}@127.0.0.1:notaport",
        f"rediss://mill:{SECRET}@127.0.0.1:1/0?ssl_cert_reqs=none",
        f"unix:///nowhere.sock?password={SECRET}",
    ],
)
def test_an_error_hides_the_password_of_a_url(mill: Mill, url: str) -> None:
    done = mill.run("record", env={"CIDERMILL_REDIS_URL": url})
    assert (done.returncode, done.stdout) == (4, "")
    assert "Redis" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr


def test_doctor_hides_the_password_of_a_url(mill: Mill) -> None:
    done = mill.run("doctor", env={"CIDERMILL_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:1/0"})
    assert done.returncode == 1
    states = {row["check"]: row["state"] for row in json_lines(done.stdout)}
    assert states == {"storage": "ok", "ledger": "ok", "redis": "missing", "mlx": "ok", "model": "ok"}
    assert "redis://:***@127.0.0.1:1/0 does not answer" in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_the_worker_of_a_run_gets_the_password_where_nobody_sees_it(working_mill: Mill) -> None:
    """Redis asks for a user and a password; they are in no argument list, no log and no message."""
    mill = working_mill
    url = mill.start_redis()
    admin = connect(url)
    admin.execute_command("ACL", "SETUSER", "mill", "on", f">{SECRET}", "~*", "&*", "+@all")
    admin.execute_command("ACL", "SETUSER", "default", "-@dangerous")
    mill.environment["CIDERMILL_REDIS_URL"] = url.replace("unix://", f"unix://mill:{SECRET}@")
    command = mill.start("run", mill.input([{"prompt": "a", "max_tokens": 3}]), "--worker", "-o", "out.jsonl")
    (worker,) = wait_until(mill.workers, "the worker")
    arguments = psutil.Process(worker.pid).cmdline()
    assert command.wait() == 0, command.stderr
    log = (mill.data_dir / "logs" / "worker.log").read_text("utf-8")
    assert arguments[2:] == ["cli.main", "worker", "--model", mill.model, "--wait", "--stop-with-parent"]
    assert SECRET not in command.stdout + command.stderr + log
    assert "refuses the user or the password" not in log
    wrong = mill.run("record", env={"CIDERMILL_REDIS_URL": url.replace("unix://", f"unix://mill:no-{SECRET}@")})
    assert wrong.returncode == 4
    assert wrong.stderr.endswith("refuses the user or the password in the URL\n")
    assert SECRET not in wrong.stderr
    connect(mill.environment["CIDERMILL_REDIS_URL"]).execute_command("ACL", "SETUSER", "default", "+@all")


def test_a_relative_data_directory_is_shown_whole(mill: Mill) -> None:
    rows = settings(mill, "--data-dir", "beside")
    assert rows["data_dir"]["value"] == str(mill.folder / "beside")
