"""The process that runs kernels: loads the runtime, then serves one run after the other over stdin and stdout.

Started by path, so that it imports nothing but the standard library. Messages are pickles with their length in front.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
from typing import IO, Any

_TRAFFIC = [
    "bytes_read",
    "bytes_written",
    "atomic_bytes",
    "unique_bytes_read",
    "unique_bytes_written",
    "most_reads",
    "most_writes",
    "bytes_read_once_per_threadgroup",
]
_COUNTS = ["threadgroups", "barriers", "collectives", "switches", "threadgroup_bytes"]
_KINDS = {"input": 0, "constant": 1, "output": 2}
_ORDERS = {"forward": 0, "reverse": 1, "seeded": 2}


# The structures of runtime/interface.h.
class Buffer(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("contents", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("origin", ctypes.c_int64),
        ("byte_offset", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("initialised", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in _TRAFFIC),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int32),
        ("order_seed", ctypes.c_uint32),
        ("layout_seed", ctypes.c_uint32),
        ("metered", ctypes.c_int32),
        ("poisoned", ctypes.c_int32),
        ("check_finite", ctypes.c_int32),
        ("flush_denormals", ctypes.c_int32),
    ]


class Finding(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char * 32),
        ("site", ctypes.c_uint32),
        ("count", ctypes.c_int64),
        ("message", ctypes.c_char * 304),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("completed", ctypes.c_int32),
        ("findings_kept", ctypes.c_int32),
        ("findings_seen", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in _COUNTS),
        ("seconds", ctypes.c_double),
        ("findings", Finding * 64),
    ]


def load_runtime(path: str) -> ctypes.CDLL:
    """The runtime, its names visible to kernels; on Linux libm with it, which a kernel calls too."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    runtime = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    runtime.host_start()
    return runtime


def run(runtime: ctypes.CDLL, entry: Any, request: dict[str, Any]) -> dict[str, Any]:
    described = request["buffers"]
    buffers = (Buffer * len(described))()
    contents = []
    for buffer, given in zip(buffers, described, strict=True):
        content = ctypes.create_string_buffer(given["contents"] or bytes(given["bytes"]), given["bytes"] or 1)
        contents.append(content)
        buffer.name = given["name"].encode()
        buffer.contents = ctypes.addressof(content)
        buffer.bytes = given["bytes"]
        buffer.origin = given["origin"]
        buffer.byte_offset = given["byte_offset"]
        buffer.kind = _KINDS[given["kind"]]
        buffer.initialised = given["contents"] is not None

    chosen = request["options"]
    options = Options(
        _ORDERS[chosen["order"]],
        chosen["order_seed"],
        chosen["layout_seed"],
        chosen["metered"],
        chosen["poison_outputs"],
        chosen["metered"] and chosen["check_finite"],
        chosen["flush_denormals"],
    )
    report = Report()
    three = ctypes.c_uint32 * 3
    signal.setitimer(signal.ITIMER_PROF, chosen["cpu_seconds"])  # SIGPROF ends the process
    runtime.host_run(
        entry,
        buffers,
        len(described),
        three(*request["grid"]),
        three(*request["threadgroup"]),
        ctypes.byref(options),
        ctypes.byref(report),
    )
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {
        "outputs": [
            content.raw[: given["bytes"]]
            for content, given in zip(contents, described, strict=True)
            if given["kind"] == "output"
        ],
        "traffic": [{name: getattr(buffer, name) for name in _TRAFFIC} for buffer in buffers],
        "completed": bool(report.completed),
        "seconds": report.seconds,
        **{name: getattr(report, name) for name in _COUNTS},
        "findings": [
            (found.kind.decode(), found.site, found.count, found.message.decode(errors="replace"))
            for found in report.findings[: report.findings_kept]
        ],
    }


def send(stream: IO[bytes], message: object) -> None:
    packed = pickle.dumps(message, protocol=5)
    stream.write(struct.pack("<Q", len(packed)) + packed)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<Q", head)
    packed = stream.read(length)
    return pickle.loads(packed) if len(packed) == length else None


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets between the messages
    runtime = load_runtime(sys.argv[1])
    entries: dict[str, Any] = {}
    while (request := receive(sys.stdin.buffer)) is not None:
        library = request["library"]
        if library not in entries:
            entries[library] = ctypes.cast(ctypes.CDLL(library).host_entry, ctypes.c_void_p)
        send(answers, run(runtime, entries[library], request))


if __name__ == "__main__":
    main()
