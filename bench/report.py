"""Results on the screen and on disk: machine, date and command beside every figure."""

import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from worker.engine.machine import chip

RESULTS = Path(__file__).parent / "results"


def circumstances() -> dict[str, Any]:
    """Where and when a figure was measured, and by which command."""
    return {
        "command": " ".join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "chip": chip(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "preloaded": Path(os.environ.get("LD_PRELOAD", "")).name or None,
    }


def save(name: str, content: dict[str, Any]) -> Path:
    """Write bench/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"measured": circumstances(), **content}, indent=1) + "\n", "utf-8")
    return path


def table(headings: list[str], rows: list[list[object]]) -> str:
    """A Markdown table; floats with two decimals."""

    def cell(value: object) -> str:
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = [headings, ["---"] * len(headings), *[[cell(value) for value in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
