"""What this machine is: its chip and power, on which the speed of a pass depends, and its memory."""

import os
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
    """'low power', 'normal', 'high power', or 'unknown': it sets the clocks, and so the cost curve."""
    if sys.platform != "darwin":
        return "unknown"
    shown = subprocess.run(["/usr/bin/pmset", "-g"], capture_output=True, text=True, check=False).stdout
    return power_mode_of(shown)


def power_mode_of(shown: str) -> str:
    """The mode in the output of `pmset -g`: an entry `lowpowermode`, or `powermode` where a Mac has a high one too."""
    entries = dict(words[:2] for line in shown.splitlines() if len(words := line.split()) >= 2)
    mode = entries.get("powermode", entries.get("lowpowermode", "0"))
    return {"1": "low power", "2": "high power"}.get(mode, "normal")


def keep_weights_resident() -> None:
    """Let MLX wire as much memory as macOS recommends for the GPU, so that idle weights are not paged out."""
    if mx.metal.is_available():
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))


def memory_bytes() -> int:
    """Bytes that the device MLX computes on gives a model.

    Metal: the working set that macOS recommends for the GPU. CUDA: the GPU's memory. CPU: the machine's memory, or the
    limit of the control group that this process runs in, if that is lower.
    """
    if mx.default_device() == mx.gpu:
        info = mx.device_info()
        return int(info["max_recommended_working_set_size" if mx.metal.is_available() else "total_memory"])
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _cgroup_limits(membership: Path, root: Path) -> list[int]:
    """Linux, cgroup v2: memory.max of the process's group and of every group above it; "max" says no limit."""
    lines = membership.read_text().splitlines() if membership.is_file() else []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    group = root / own
    files = [folder / "memory.max" for folder in (group, *group.parents) if folder.is_relative_to(root)]
    limits = [file.read_text().strip() for file in files if file.is_file()]
    return [int(limit) for limit in limits if limit != "max"]


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
