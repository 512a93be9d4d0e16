"""Who imports whom: a producer's machine needs no mlx, the engine no queue, and help is there at once."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.dataset.request_line import InputLine
from api.ledger.ledger import Ledger
from api.schemas import RequestBody

REPOSITORY = Path(__file__).parents[2]
OURS = {"api", "bench", "cli", "kernels", "migrations", "worker"}
HEAVY = {"mlx", "mlx_lm", "numpy", "transformers"}
HELP_CPU_SECONDS = 0.5


def loaded_by(statement: str) -> set[str]:
    """The modules of a fresh interpreter after `statement`, whole names and top-level ones."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=REPOSITORY.parent
    )
    names = done.stdout.split()
    return {*names, *(name.partition(".")[0] for name in names)}


def test_the_command_line_loads_nothing_heavy() -> None:
    loaded = loaded_by("import cli, cli.main")
    assert "typer" in loaded
    assert loaded.isdisjoint(HEAVY | {"fastapi", "sqlalchemy", "alembic", "rq", "redis", "pydantic", "rich.table"})


def test_what_a_producer_runs_loads_no_mlx() -> None:
    modules = "api.submission, api.recorder, api.dataset.writer, api.queue.server, cli.coordinator, cli.prechecks"
    loaded = loaded_by(f"import {modules}, worker.engine.models")
    assert {"sqlalchemy", "rq", "cli.worker_process"} <= loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["status", "stats", "results"])
def test_what_is_asked_of_a_finished_batch_loads_no_redis(command: str, tmp_path: Path) -> None:
    create = {"model": "m", "priority": "low", "input_path": "i", "input_sha256": "s", "fingerprint": "f"}
    lines = [InputLine(1, None, RequestBody(prompt="p"))]
    with Ledger.open(tmp_path / "ledger.sqlite3") as ledger:
        ledger.create_batch(batch_id="batch_A", **create, output_path=None, output_format="csv", lines=lines)
        ledger.cancel("batch_A")
    arguments = [command, "latest", "--data-dir", str(tmp_path)]
    loaded = loaded_by(f"import cli.main; cli.main.app({arguments}, standalone_mode=False)")
    assert "sqlalchemy" in loaded
    assert loaded.isdisjoint(HEAVY | {"rq", "redis", "alembic"})


def test_the_engine_loads_no_queue_and_no_database() -> None:
    loaded = loaded_by("import worker.engine.engine")
    assert {"mlx", "api.schemas"} <= loaded
    assert loaded.isdisjoint({"rq", "redis", "sqlalchemy", "alembic", "typer", "cli", "api.queue", "api.ledger"})


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, also within functions and for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            # `from api import schemas` names a module as well as `from api.schemas import x` does.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_imports(folder: str) -> dict[str, set[str]]:
    """Per file of a folder, what it imports of ours."""
    found = {}
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        names = {name for name in imports_of(path) if name.partition(".")[0] in OURS}
        found[str(path.relative_to(REPOSITORY))] = names
    assert found, folder
    return found


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("api", ("api",)),
        ("kernels", ("kernels",)),
        ("worker", ("worker", "api", "kernels")),
        ("cli", ("cli", "worker", "api")),
        ("migrations", ("migrations", "api")),
        ("worker/engine", ("worker.engine", "kernels", "api.schemas", "api.errors", "api.acceptance", "api.identity")),
    ],
)
def test_imports_go_one_way(folder: str, allowed: tuple[str, ...]) -> None:
    for path, names in our_imports(folder).items():
        wrong = {name for name in names if not any(f"{name}.".startswith(f"{one}.") for one in allowed)}
        assert not wrong, f"{path} imports {wrong}"


def test_help_takes_little_time() -> None:
    assert min(cpu_seconds("--help") for _ in range(3)) < HELP_CPU_SECONDS


def cpu_seconds(*arguments: str) -> float:
    process = subprocess.Popen([sys.executable, "-m", "cli.main", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
