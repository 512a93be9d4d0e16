"""Builds kernels and the runtime, once for each text and set of options; results stay in a cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from kernels.host import instrument, toolchain
from kernels.host.toolchain import INCLUDE, RUNTIME, clang, link

# Defined C++ for what Metal leaves open or defines otherwise: unsuffixed literals are floats, half and bfloat round
# after each operation, and what is not initialised holds a pattern.
_LANGUAGE = [
    "-std=c++20",
    "-w",
    "-ferror-limit",
    "6",
    "-cl-single-precision-constant",
    "-ffloat16-excess-precision=none",
    "-fbfloat16-excess-precision=none",
    "-ftrivial-auto-var-init=pattern",
    "-fstack-clash-protection",  # a large private array meets the guard page, not another thread's stack
]
_CODE = ["-O2", "-mrelocation-model", "pic", "-pic-level", "2"]
_CHECKS = "shift-exponent,signed-integer-overflow,integer-divide-by-zero,array-bounds,float-cast-overflow"
_CHECKED = [f"-fsanitize={_CHECKS}", f"-fsanitize-recover={_CHECKS}", "-debug-info-kind=line-tables-only"]

# Further macros for the runtime; a test sets -DHOST_UCONTEXT.
runtime_defines: tuple[str, ...] = ()


def cache_folder() -> Path:
    """$CIDERMILL_KERNEL_CACHE, else cidermill/kernels in $XDG_CACHE_HOME or ~/.cache. May be deleted at any time."""
    chosen = os.environ.get("CIDERMILL_KERNEL_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(chosen) if chosen else base / "cidermill" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


MathMode = Literal["safe", "relaxed", "fast"]


@dataclass(frozen=True)
class Build:
    """How a kernel is compiled: with the meter's hooks or without, with what contraction, in which math mode."""

    metered: bool
    contract: bool
    math_mode: MathMode

    @property
    def contraction(self) -> str:
        """Clang's flag; `on` is within statements, which Metal's mode safe has, `fast` wherever operations meet."""
        if not self.contract:
            return "-ffp-contract=off"
        return "-ffp-contract=on" if self.math_mode == "safe" else "-ffp-contract=fast"


def kernel_library(cpp: str, build: Build) -> Path:
    """The shared library of a translated kernel."""

    def make(folder: Path, output: Path) -> None:
        source, ir, compiled = folder / "kernel.cpp", folder / "kernel.ll", folder / "kernel.o"
        source.write_text(cpp)
        code = [*_CODE, build.contraction]
        stage = ["-emit-llvm", "-disable-llvm-passes", *_LANGUAGE, *code, *(_CHECKED if build.metered else [])]
        clang([*stage, "-I", INCLUDE, "-x", "c++", source.name, "-o", ir.name], folder)
        if build.metered:
            ir.write_text(instrument.instrument(ir.read_text(), comparisons=build.math_mode == "fast"))
        clang(["-emit-obj", *code, "-x", "ir", ir.name, "-o", compiled.name], folder)
        link(compiled, output)

    return cached(f"{digest_of_host()} {build} {cpp}", ".so", make)


def runtime_library() -> Path:
    """The shared library of the runtime in `runtime/`."""
    defines = runtime_defines
    return cached(f"{digest_of_host()} {defines}", ".so", lambda _, output: toolchain.compile_runtime(output, defines))


def cached(key: str, suffix: str, make: Callable[[Path, Path], None]) -> Path:
    """The file that `make(folder, output)` makes for this key, from the cache if it is there."""
    wanted = cache_folder() / (hashlib.sha256(key.encode()).hexdigest()[:32] + suffix)
    if not wanted.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="build-") as name:
            made = Path(name) / f"made{suffix}"
            make(Path(name), made)
            made.replace(wanted)  # at once: another process may be building the same
    return wanted


@cache
def digest_of_host() -> str:
    """Of everything that decides what a build of one text is: the toolchain and this package."""
    digest = hashlib.sha256(toolchain.identity().encode())
    files = [*INCLUDE.iterdir(), *RUNTIME.iterdir(), *Path(__file__).parent.glob("*.py")]
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
