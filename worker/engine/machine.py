"""What this machine is, as far as the speed of a pass depends on it."""

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import mlx.core as mx


@cache
def chip() -> str:
    """The device that MLX computes on, such as 'Apple M5' or 'AMD EPYC (cpu)'."""
    device = mx.default_device()
    if device == mx.gpu:
        return str(mx.device_info().get("device_name") or platform.machine())
    return f"{_cpu_name()} (cpu)"


def power_mode() -> str:
    """'low power', 'normal', or 'unknown': macOS lowers its clocks, and so changes the cost curve."""
    if sys.platform != "darwin":
        return "unknown"
    shown = subprocess.run(["/usr/bin/pmset", "-g"], capture_output=True, text=True, check=False).stdout
    words = next((line.split() for line in shown.splitlines() if "lowpowermode" in line), ["lowpowermode", "0"])
    return "low power" if words[-1] == "1" else "normal"


def keep_weights_resident() -> None:
    """Let MLX wire as much memory as macOS recommends for the GPU, so that idle weights are not paged out."""
    if mx.metal.is_available():
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
