"""Native errors with their numbers and names (rule W9)."""

from __future__ import annotations

from typing import Any

import pyopencl as cl
import pytest
from slotline_opencl import OpenclBackend, kernels
from slotline_opencl.failures import failed, native

import slotline as sl
from slotline.device import Copy


def test_w9_a_code_of_the_standard_has_its_name_and_an_unknown_one_its_number() -> None:
    known, unknown, none = failed("clFinish", -36), failed("clFinish", -9999, "of a vendor"), failed("x", None, "why")
    assert str(known) == "opencl: clFinish failed with -36 (CL_INVALID_COMMAND_QUEUE)"
    assert (unknown.code, unknown.code_name) == (-9999, None)
    assert str(unknown) == "opencl: clFinish failed with -9999 (unknown code): of a vendor"
    assert (none.code, str(none)) == (None, "opencl: x failed: why")


def test_w9_the_devices_own_error_is_chained(backend: OpenclBackend) -> None:
    with pytest.raises(sl.DeviceError) as caught, native("clCreateBuffer"):
        cl.Buffer(backend.queue().context, cl.mem_flags.READ_WRITE, 0)
    error = caught.value
    assert (error.backend, error.operation, error.code, error.code_name) == (
        "opencl",
        "clCreateBuffer",
        -61,
        "CL_INVALID_BUFFER_SIZE",
    )
    assert isinstance(error.__cause__, cl.LogicError)


def test_w9_more_than_the_device_gives_at_once_says_how_much_that_is(backend: OpenclBackend) -> None:
    most = backend.queue().device.max_mem_alloc_size
    with pytest.raises(sl.DeviceError, match=rf"need \d+ bytes in one block, the device allows {most}; take fewer"):
        backend.empty([("x", (most // 8, 16), "int64")])


def test_w9_copies_outside_of_memory_are_refused(backend: OpenclBackend) -> None:
    runtime: Any = backend.runtime
    address = runtime.allocate(256)
    with pytest.raises(sl.DeviceError, match=r"clEnqueueCopyBuffer.*-30 \(CL_INVALID_VALUE\)"):
        runtime.copy(address, address + 128, 256, Copy.DEVICE_TO_DEVICE, 0)
    with pytest.raises(sl.DeviceError, match=r"-38 \(CL_INVALID_MEM_OBJECT\): no memory of this backend lies at"):
        runtime.copy(address + 256, address, 1, Copy.DEVICE_TO_DEVICE, 0)
    with pytest.raises(sl.DeviceError, match="a pitch is 4, allowed: the width 8 and more"):
        runtime.copy_2d(address, 4, address + 128, 8, 8, 2, Copy.DEVICE_TO_DEVICE, 0)
    runtime.free(address)
    with pytest.raises(sl.DeviceError, match="nothing was allocated at"):
        runtime.free(address)


def test_w9_work_that_fails_on_the_device_keeps_its_number(backend: OpenclBackend) -> None:
    user = cl.UserEvent(backend.queue().context)
    runtime: Any = backend.runtime
    event = runtime.create_event()
    runtime._events[event] = user
    assert not runtime.is_done(event)
    user.set_status(-9999)
    with pytest.raises(sl.DeviceError, match=r"-9999 \(unknown code\)"):
        runtime.is_done(event)
    runtime.destroy_event(event)
    with pytest.raises(sl.DeviceError, match=r"-58 \(CL_INVALID_EVENT\): no such event"):
        runtime.is_done(event)


def test_w9_a_compiler_that_refuses_shows_its_log(backend: OpenclBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SOURCE", "__kernel void broken() { no_such_call(); }")
    with pytest.raises(sl.DeviceError, match=r"(?s)clBuildProgram.*-11 \(CL_BUILD_PROGRAM_FAILURE\).*no_such_call"):
        kernels.Kernels(backend.queue().context, backend.queue().device)
