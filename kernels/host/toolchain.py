"""The compiler: the clang inside the PyPI package `ziglang`, called stage by stage without zig's own driver.

`clang -cc1` and `ld.lld` need no cache, no libc and no system headers; zig's driver would first build its own C
library. On macOS the last stage is the system's linker, or zig's where there is none.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
RUNTIME = Path(__file__).parent / "runtime"


class CompileError(Exception):
    """The compiler's own words; `body:3` is the third line of the kernel's source, `header:3` of its header."""


@cache
def zig() -> Path:
    try:
        import ziglang
    except ImportError as missing:
        raise RuntimeError("the host emulator needs the package ziglang: `pip install ziglang==0.17.1`") from missing
    return Path(str(ziglang.__file__)).parent / "zig"


@cache
def identity() -> str:
    """What a build depends on besides its text: compiler version and target."""
    return f"ziglang {version('ziglang')} {' '.join(target())}"


@cache
def target() -> tuple[str, ...]:
    """Clang's flags for this machine. x86-64 must have AVX2, FMA and half conversions (2013 and later)."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) == ("Darwin", "arm64"):
        return "-triple", "arm64-apple-macosx14.0.0", "-target-cpu", "apple-m1"
    if system != "Linux":
        raise RuntimeError(f"the host emulator runs on Linux and on Macs with Apple Silicon, not on {system} {machine}")
    if machine == "x86_64":
        return "-triple", "x86_64-unknown-linux-gnu", "-target-cpu", "x86-64-v3"
    return "-triple", f"{machine}-unknown-linux-gnu"


def clang(arguments: Sequence[str | Path], folder: Path) -> None:
    """Runs one clang stage for this machine."""
    run([zig(), "clang", "-cc1", *target(), *arguments], folder)


def clang_words(arguments: Sequence[str | Path], folder: Path) -> tuple[str, str]:
    """What clang prints and what it complains of, failed or not."""
    result = _process([zig(), "clang", "-cc1", *arguments], folder)
    return result.stdout, result.stderr


def compile_runtime(output: Path, defines: Sequence[str] = ()) -> None:
    """Builds the runtime, which includes libc's headers and so takes zig's driver for the first stage."""
    compiled = output.with_suffix(".o")
    flags = ["-std=c++20", "-O2", "-g0", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-sanitize=undefined"]
    run([zig(), "c++", *flags, *defines, "-c", RUNTIME / "runtime.cpp", "-o", compiled], output.parent)
    link(compiled, output)


def link(compiled: Path, output: Path) -> None:
    """A shared library whose open names the process fills in: those of libc, libm and the runtime."""
    if platform.system() != "Darwin":
        run([zig(), "ld.lld", "-shared", compiled, "-o", output], output.parent)
        return
    system = shutil.which("cc")
    driver = [system] if system else [zig(), "cc"]
    run([*driver, "-dynamiclib", "-undefined", "dynamic_lookup", compiled, "-o", output], output.parent)


def run(command: Sequence[str | Path], folder: Path) -> None:
    result = _process(command, folder)
    if result.returncode:
        raise CompileError(result.stderr.strip() or f"{command[0]} ended with status {result.returncode}")


def _process(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    # zig keeps what its driver makes (nothing but the runtime's first stage) beside the builds.
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder / "zig"))
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, env={**os.environ, **caches}
    )
