"""The runner of all tests: its exit code, its report, and that nothing is left of what was interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
RUN = "import sys; from tests.side_by_side import main; sys.exit(main(['-c', sys.argv[1]], ['-c', sys.argv[2]]))"
# Ends by the exception of its signal, after the process that it has started; that one is deaf.
PARENT = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
deaf = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
child.stdout.readline()
with open({path!r}, "w") as file:
    file.write(f"{{child.pid}}\\n")
time.sleep(600)
"""


def start(tests: str, faults: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", RUN, tests, faults]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("tests", "faults", "code"),
    [("pass", "pass", 0), ("raise SystemExit(5)", "pass", 5), ("pass", "raise SystemExit(1)", 1)],
)
def test_it_fails_when_either_fails_and_reports_last(tests: str, faults: str, code: int) -> None:
    run = start(f"print('tests'); {tests}", f"print('faults'); {faults}")
    said, _ = run.communicate(timeout=60)
    assert run.returncode == code
    assert said.split() == ["tests", "faults"]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_no_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    files = [tmp_path / "tests", tmp_path / "faults"]
    run = start(*(PARENT.format(path=str(file)) for file in files))
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text().endswith("\n") for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode == code
    for pid in (int(file.read_text()) for file in files):
        while not gone(pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
