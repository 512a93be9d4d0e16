"""The password of a URL: from a file of its owner alone, and in no argument, no output and no process list."""

import signal
from pathlib import Path

import psutil
import pytest
from mill import Mill, json_lines

from api.errors import InputError
from api.queue.connection import connect
from api.settings import load_settings
from api.url_file import read_url_file

SECRET = "hunter2-is-secret"


def url_file(folder: Path, url: str, mode: int = 0o600) -> Path:
    path = folder / "mill.url"
    path.write_text(url + "\n", "utf-8")
    path.chmod(mode)
    return path


def test_an_authority_beside_the_file_is_found_from_anywhere(tmp_path: Path) -> None:
    path = url_file(tmp_path, f"rediss://worker:{SECRET}@mill:6379/0?ssl_ca_certs=ca.crt&db=1")
    url = read_url_file(path).get_secret_value()
    assert url.startswith(f"rediss://worker:{SECRET}@mill:6379/0?ssl_ca_certs=")
    assert url.endswith("ca.crt&db=1")
    assert str(tmp_path).replace("/", "%2F") in url
    assert SECRET not in repr(read_url_file(path))


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (f"redis://:{SECRET}@h", 0o644, "chmod 600"),
        (f"redis://:{SECRET}@h", 0o620, "chmod 600"),
        (f"redis://:{SECRET}@h\nredis://h", 0o600, "one URL and nothing else"),
        ("", 0o600, "one URL and nothing else"),
        (SECRET * 1000, 0o600, "one URL and nothing else"),
        (f"redis://:{SECRET}\u00e9@h", 0o600, "one URL and nothing else"),
    ],
)
def test_a_file_that_is_open_or_no_url_is_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        read_url_file(url_file(tmp_path, text, mode))
    assert SECRET not in str(refused.value)


def test_a_missing_file_is_named(mill: Mill) -> None:
    done = mill.run("record", env={"CIDERMILL_REDIS_URL_FILE": "/no/such.url"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cidermill: Redis URL file /no/such.url cannot be read: No such file or directory\n"


def test_a_url_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIDERMILL_REDIS_URL_FILE", str(url_file(tmp_path, "redis://from-file")))
    monkeypatch.setenv("CIDERMILL_CONFIG", str(tmp_path / "none.toml"))
    from_file = load_settings().effective_redis_url
    from_flag = load_settings(redis_url="redis://from-flag").effective_redis_url
    assert from_file is not None
    assert from_flag is not None
    assert (from_file.get_secret_value(), from_flag.get_secret_value()) == ("redis://from-file", "redis://from-flag")


@pytest.mark.parametrize("command", ["record", "worker", "doctor", "config", "redis-check"])
def test_a_password_on_the_command_line_is_refused(mill: Mill, command: str) -> None:
    done = mill.run(command, "--redis", f"redis://mill:{SECRET}@127.0.0.1:1/0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "can be read in every process list" in done.stderr
    assert SECRET not in done.stderr


def test_nobody_hears_the_password_of_the_file(working_mill: Mill) -> None:
    """A recorder, a run with its worker, and every command that shows something: outputs, logs and process lists."""
    mill = working_mill
    url = mill.start_redis()
    del mill.environment["CIDERMILL_REDIS_URL"]
    admin = connect(url)
    admin.execute_command("ACL", "SETUSER", "mill", "on", f">{SECRET}", "~*", "&*", "+@all")
    path = url_file(mill.folder, url.replace("unix://", f"unix://mill:{SECRET}@"))
    mill.environment["CIDERMILL_REDIS_URL_FILE"] = str(path)
    seen: list[str] = []
    command = mill.start("run", mill.input([{"prompt": "a", "max_tokens": 200}]), "--worker", "-o", "out.jsonl")
    mill.wait_for_state(0, "running", "completed")
    for process in (psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)):
        seen += process.cmdline()
    for name in ("config", "doctor", "status", "redis-check"):
        done = mill.run(name)
        seen += [done.stdout, done.stderr]
    if command.process.poll() is None:
        command.signal(signal.SIGTERM)
    command.wait()
    log = (mill.data_dir / "logs" / "worker.log").read_text("utf-8")
    seen += [command.stdout, command.stderr, log]
    assert "worker" in seen
    assert all(SECRET not in text for text in seen)
    rows = {row["name"]: row["value"] for row in json_lines(mill.run("config").stdout)}
    assert (rows["redis_url"], rows["redis_url_file"]) == ("(unset)", str(path))


def test_no_traceback_and_no_object_shows_the_password(mill: Mill, tmp_path: Path) -> None:
    url = mill.start_redis()
    admin = connect(url)
    admin.execute_command("ACL", "SETUSER", "mill", "on", f">{SECRET}", "~*", "&*", "+@all")
    secret_url = url.replace("unix://", f"unix://mill:{SECRET}@")
    connection = connect(secret_url)
    assert connection.ping()
    settings = load_settings(redis_url=secret_url, data_dir=tmp_path)
    shown = [
        repr(connection),
        repr(connection.connection_pool),
        repr(settings),
        str(settings),
        settings.model_dump_json(),
    ]
    assert all(SECRET not in text for text in shown)
