"""Which exceptions say that memory ran out: the words are those of MLX's allocators, CUDA and Python."""

import pytest

from worker.engine.memory import ran_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[metal::malloc] Unable to allocate 4096 bytes."),
        RuntimeError(
            "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size of 8"
        ),
        RuntimeError("[metal::malloc] Resource limit (499000) exceeded."),
        RuntimeError("[malloc_or_wait] Unable to allocate 4096 bytes."),
        RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_memory_ran_out(error: Exception) -> None:
    assert ran_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), KeyError("out of memory"), ValueError("bad_alloc")])
def test_something_else_went_wrong(error: Exception) -> None:
    assert not ran_out_of_memory(error)
