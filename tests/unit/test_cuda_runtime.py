"""The CUDA backend's own code on a fake of CUDA's runtime that executes late, under the race detector."""

from __future__ import annotations

import ctypes
from typing import Any

import fake_cuda
import numpy as np
import pytest
from cuda_on_sim import cuda_backend
from sim_loop import LAYOUT, Loop

import slotline as sl
from slotline.backends.cuda.runtime import CudaRuntime, device_info
from slotline.backends.sim.machine import Machine
from slotline.compat import cuda
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes
from slotline.core.runtime import Copy


@pytest.mark.parametrize("mode", ["late", "random"])
def test_b8_an_engines_loop_under_many_seeds(mode: str) -> None:
    for seed in range(25):
        with cuda_backend(seed, mode) as (backend, fake):
            Loop(backend, seed).run()
            backend.synchronize()
            assert backend.retained == 0
            assert "cudaMemcpy2DAsync" in fake.calls
            backend.close()


def test_w6_a_small_ring_waits_and_splits_and_the_bytes_are_right() -> None:
    for seed in range(10):
        with cuda_backend(seed, staging_bytes=2048) as (backend, _):
            loop = Loop(backend, seed)
            loop.run()
            stats = loop.batch.stats
            assert stats["splits"] > 0
            assert stats["staging_waits"] > 0
            backend.close()


def test_i4_one_copy_one_kernel_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with cuda_backend() as (backend, fake):
        batch = sl.SlotBatch(LAYOUT, backend)
        batch.stats.clear()
        fake.calls.clear()
        launches = cuda.driver().launches
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(f"r{i}", [3, 4, 5]), 0, 3, [i]) for i in range(4)])
        assert fake.calls.count("cudaMemcpyAsync") == 1
        assert cuda.driver().launches - launches == 1
        waits = {"cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy2DAsync", "cudaMalloc", "cudaFree"}
        assert not waits & set(fake.calls[1:]) - {"cudaMalloc"}  # the ring's twin is made at the first packet
        assert (batch.stats["transfers"], batch.stats["kernels"], batch.stats["host_synchronisations"]) == (1, 1, 0)
        backend.close()


def test_everything_is_given_back() -> None:
    with cuda_backend() as (backend, fake):
        Loop(backend, 3).run()
        used = backend.runtime
        backend.close()
        del backend
        assert set(fake.memory.values()) <= {"device"}  # tables of batches that still live
        assert not fake.events
        assert len(fake.streams) == 1  # the loop's own
        assert isinstance(used, CudaRuntime)


def test_w4_w6_inserting_while_a_graph_is_captured_is_an_error() -> None:
    with cuda_backend() as (backend, fake):
        batch = sl.SlotBatch(LAYOUT, backend)
        before = batch.digest()
        fake.capturing.add(0)
        with pytest.raises(sl.DeviceError, match="a graph is being captured"):
            sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3]), 0, 1, [1])])
        with pytest.raises(sl.DeviceError, match="async_set_value failed: a graph is being captured"):
            sl.async_set_value(batch["step_idx"], 1)
        fake.capturing.clear()
        assert batch.digest() == before
        assert "a" not in batch
        backend.close()


@pytest.mark.parametrize("call", ["copy", "record", "wait"])
def test_w9_i1_a_call_that_fails_leaves_nothing_half_done(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever call of the device fails: the host knows of no insertion, and the staging memory is whole again."""
    with cuda_backend(staging_bytes=8192) as (backend, fake):
        batch = sl.SlotBatch(LAYOUT, backend)
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])])
        before = batch.occupied, batch.launch_tokens

        def fails(*arguments: Any) -> None:
            raise DeviceError("fake", "call", 700, None)

        for _ in range(30):  # more than the ring has room for
            with monkeypatch.context() as patch:
                patch.setattr(fake.sim, call, fails)
                with pytest.raises(DeviceError, match=r"failed with 700 \(cudaErrorIllegalAddress\)"):
                    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("b", [5, 6]), 0, 2, [2])])
            assert (batch.occupied, batch.launch_tokens) == before
        backend.synchronize()
        assert backend.retained == 0
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("b", [5, 6]), 0, 2, [2])])
        assert backend.read(batch["input_ids"])[1, :2].tolist() == [5, 6]
        backend.close()


class WithInt:
    def __init__(self, number: int) -> None:
        self.number = number

    def __int__(self) -> int:
        return self.number


class WithCudaStream:
    def __init__(self, number: int) -> None:
        self.cuda_stream = number


FORMS: dict[str, Any] = {
    "int": int,
    "numpy": np.int64,
    "__int__": WithInt,
    "value": ctypes.c_void_p,
    "cuda_stream": WithCudaStream,
}


@pytest.mark.parametrize("form", FORMS)
def test_c67_every_form_of_a_stream_reaches_the_copy_call(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with cuda_backend() as (backend, fake):
        target = backend.empty([("x", (4,), "int32")])["x"]
        backend.synchronize()
        stream = backend.new_stream()
        got: list[int] = []
        copy = fake.sim.copy

        def spy(*arguments: Any) -> None:
            got.append(arguments[-1])
            copy(*arguments)

        monkeypatch.setattr(fake.sim, "copy", spy)
        backend.async_set_value(target, [1, 2, 3, 4], stream=FORMS[form](stream)).sync()
        backend.async_set_value(target, [1, 2, 3, 4])
        assert got == [stream, 0]
        backend.close()


def test_x3_w9_errors_keep_their_number_and_name() -> None:
    with fake_cuda.installed(Machine()) as fake:
        runtime = CudaRuntime(0, lambda: 0)
        for call, code, name in (
            (lambda: runtime.record(runtime.create_event(), 999), 400, "cudaErrorInvalidResourceHandle"),
            (lambda: runtime.destroy_event(12345), 400, "cudaErrorInvalidResourceHandle"),
            (lambda: runtime.free(64), 1, "cudaErrorInvalidValue"),
            (lambda: runtime.allocate(1 << 40), 2, "cudaErrorMemoryAllocation"),
            (lambda: runtime.copy(64, 64, 8, Copy.DEVICE_TO_DEVICE, 0), 700, "cudaErrorIllegalAddress"),
            (lambda: runtime.copy_2d(64, 2, 64, 2, 8, 2, Copy.HOST_TO_DEVICE, 0), 12, "cudaErrorInvalidPitchValue"),
        ):  # fmt: skip
            with pytest.raises(DeviceError) as caught:
                call()
            assert (caught.value.backend, caught.value.code, caught.value.code_name) == ("cuda", code, name)
        address = runtime.allocate(8)
        runtime.free(address)
        with pytest.raises(DeviceError, match="cudaFree failed with 1"):
            runtime.free(address)
        fake.devices = 1
        with pytest.raises(DeviceError, match="device 3 of 1"):
            CudaRuntime(3, lambda: 0)


def test_c11_another_current_device_is_left_as_it_was() -> None:
    with fake_cuda.installed(Machine(), devices=2) as fake:
        runtime = CudaRuntime(1, lambda: 0)
        fake.device = 0
        address = runtime.allocate(64)
        assert fake.device == 0
        assert fake.calls[-4:] == ["cudaGetDevice", "cudaSetDevice", "cudaMalloc", "cudaSetDevice"]
        runtime.free(address)


def test_w5_copies_land_late_and_in_order() -> None:
    with fake_cuda.installed(Machine()) as fake:
        runtime = CudaRuntime(0, lambda: 0)
        host, device = runtime.allocate_host(64), runtime.allocate(64)
        view = host_bytes(host, 64)
        view[:] = np.arange(64)
        event = runtime.create_event()
        runtime.copy_2d(device, 16, host, 32, 8, 2, Copy.HOST_TO_DEVICE, 0)
        runtime.record(event, 0)
        view[0] = 99  # the source is read when the copy runs: the trap of W4
        runtime.sync_event(event)
        assert runtime.is_done(event)
        there = fake.machine.memory.find(device)
        assert there is not None
        assert there.bytes[:8].tolist() == [99, *range(1, 8)]
        assert there.bytes[16:24].tolist() == list(range(32, 40))


def test_b3_what_doctor_says_of_a_device() -> None:
    with fake_cuda.installed(Machine()) as fake:
        assert device_info(0) == {
            "device": "Simulated GPU", "compute capability": "9.0", "driver": "13.0", "runtime": "12.9",
        }  # fmt: skip
        assert not {"cudaSetDevice", "cudaMalloc"} & set(fake.calls)  # no context is made
        with pytest.raises(DeviceError, match=r"cudaGetDeviceProperties failed with 101 \(cudaErrorInvalidDevice\)"):
            device_info(1)
