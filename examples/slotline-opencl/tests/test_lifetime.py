"""What is kept alive, what is given back, and a backend that was closed (rules W4, W9, B3)."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import Busy
from slotline_opencl import OpenclBackend

import slotline as sl


def tensor_of(backend: OpenclBackend, *shape: int, dtype: str = "int64") -> Any:
    return backend.empty([("x", shape, dtype)])["x"]


def test_nothing_is_held_that_is_done(backend: OpenclBackend, busy: Busy) -> None:
    target = tensor_of(backend, 8, 8)
    busy()
    source = tensor_of(backend, 8, 8)
    memory = weakref.ref(source.memory)
    backend.async_set_value(source, 1)
    backend.async_set_value(target, source)
    del source
    gc.collect()
    assert memory() is not None  # still to be read
    backend.synchronize()
    assert backend.retained == 0
    gc.collect()
    assert memory() is None


def test_memory_is_found_as_long_as_a_tensor_lies_in_it(backend: OpenclBackend) -> None:
    gc.collect()
    space = backend.runtime.space  # type: ignore[attr-defined]
    before = len(list(space))
    tensors = [tensor_of(backend, 4)[1:3] for _ in range(50)]
    assert len(list(space)) == before + 50
    assert space.find(tensors[7].address) == (tensors[7].memory, 8)
    address = tensors[7].address
    del tensors
    gc.collect()
    assert len(list(space)) == before
    with pytest.raises(sl.DeviceError, match="no memory of this backend lies at"):
        space.find(address)


def test_events_and_memory_do_not_pile_up(backend: OpenclBackend) -> None:
    runtime: Any = backend.runtime
    target, source = tensor_of(backend, 16, 16), tensor_of(backend, 16, 16, dtype="int32")

    def some() -> None:
        for i in range(100):
            backend.async_set_value(target[::2], i)
            backend.async_set_value(target, source)
            backend.async_set_value(target[1:], target[:-1])
            backend.download(target)
        backend.synchronize()

    for _ in range(6):
        some()
    assert len(runtime._events) <= 500  # as many as were ever on their way, not as many as there were
    assert len(runtime._mapped) <= 110
    assert len(list(runtime.space)) == 2 + len(runtime._memory)
    assert not any(lane.copies for lane in runtime._lanes.values())


def test_close_gives_everything_back_and_ends_the_object() -> None:
    backend = OpenclBackend()
    config = sl.BatchConfig(
        max_num_seqs=4, max_model_len=64, max_chunk_tokens=16, block_size=4, num_blocks=64, vocab_size=100
    )
    batch = sl.SlotBatch(sl.target_layout(config), backend)
    tensor = tensor_of(backend, 4)
    event = backend.async_set_value(tensor, 1)
    pending = backend.download(tensor)
    runtime: Any = backend.runtime
    backend.close()
    backend.close()
    assert not len(runtime._mapped)
    assert not runtime._memory
    for held in (tensor, batch["input_ids"]):
        with pytest.raises(sl.DeviceError, match="given back when the backend was closed"):
            held.buffer  # noqa: B018
    assert event.is_done
    event.sync()
    calls: list[Any] = [
        lambda: backend.async_set_value(tensor, 2),
        lambda: backend.async_set_value(tensor, tensor),
        lambda: backend.read(tensor),
        lambda: backend.download(tensor),
        lambda: backend.empty([("x", (4,), "int64")]),
        lambda: sl.SlotBatch(batch.layout, backend),
        lambda: sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2]), 0, 2, [1])]),
        lambda: backend.new_stream(),
        backend.synchronize,
    ]
    for call in calls:
        with pytest.raises(sl.DeviceError, match="the backend was closed; load it again"):
            call()
    with pytest.raises(sl.DeviceError, match="closed before this result was taken"):
        pending.array()
    with pytest.raises(TypeError, match="not a tensor of a loaded backend"):
        sl.async_set_value(tensor, 3)


def test_a_backend_that_is_dropped_gives_its_memory_back() -> None:
    backend = OpenclBackend()
    tensor = tensor_of(backend, 4)
    backend.async_set_value(tensor, 1)
    runtime, memory = weakref.ref(backend.runtime), weakref.ref(tensor.memory)
    del backend, tensor
    gc.collect()
    assert runtime() is None
    assert memory() is None


def test_w10_disjoint_writes_from_several_threads(backend: OpenclBackend) -> None:
    target = tensor_of(backend, 8, 32)
    failures: list[BaseException] = []

    def write(row: int) -> None:
        try:
            source = tensor_of(backend, 32, dtype="int32")
            for i in range(100):
                backend.async_set_value(source, i + row)
                backend.async_set_value(target[row], source)
                backend.async_set_value(target[row, ::2], i + row)
                if i % 10 == 0:
                    assert (backend.download(target[row]).array() == i + row).all()
        except BaseException as error:  # noqa: BLE001  (a thread's failure is shown by the test)
            failures.append(error)

    threads = [threading.Thread(target=write, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert np.array_equal(backend.read(target), np.repeat(np.arange(8) + 99, 32).reshape(8, 32))


def test_two_backends_on_one_device_know_nothing_of_each_other(backend: OpenclBackend) -> None:
    other = OpenclBackend()
    mine, theirs = tensor_of(backend, 4), tensor_of(other, 4)
    sl.async_set_value(mine, 1)
    sl.async_set_value(theirs, 2)
    assert (backend.read(mine).tolist(), other.read(theirs).tolist()) == ([1] * 4, [2] * 4)
    with pytest.raises(TypeError, match="another OpenCL backend"):
        backend.async_set_value(mine, theirs)
    other.close()
    assert backend.read(mine).tolist() == [1] * 4


def test_a_process_may_end_with_work_queued() -> None:
    script = """
import slotline as sl
from slotline_opencl import OpenclBackend
backend = OpenclBackend()
tensors = backend.empty([(str(i), (256, 256), "int64") for i in range(20)])
for i, tensor in enumerate(tensors.values()):
    backend.async_set_value(tensor, i)
    backend.async_set_value(tensor[1:], tensor[:-1])
    last = backend.download(tensor)
print("end")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "Error" not in done.stderr
