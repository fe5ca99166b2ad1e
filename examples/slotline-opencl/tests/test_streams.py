"""Queues and events (rules W5, B9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from conftest import Busy
from slotline_opencl import OpenclBackend

import slotline as sl


@pytest.fixture
def cells(backend: OpenclBackend) -> Any:
    tensor = backend.empty([("x", (16,), "int32")])["x"]
    backend.async_set_value(tensor, 0)
    backend.synchronize()
    return tensor


@pytest.mark.usefixtures("side_by_side")
def test_w5_a_stream_of_its_own_overtakes(backend: OpenclBackend, busy: Busy, cells: Any) -> None:
    side = backend.new_stream()
    long = busy()
    written = backend.async_set_value(cells, 3, stream=side)
    written.sync()
    assert not long.is_done
    long.sync()


def test_w5_an_event_orders_streams_without_the_host(backend: OpenclBackend, busy: Busy, cells: Any) -> None:
    side = backend.new_stream()
    copy = backend.empty([("x", (16,), "int64")])["x"]
    long = busy()
    written = backend.async_set_value(cells, 5)
    written.wait(side)
    copied = backend.async_set_value(copy, cells, stream=side)
    copied.wait()  # stream 0 goes on when the copy was made
    backend.async_set_value(cells, 6)
    assert not long.is_done
    assert (backend.read(copy) == 5).all()
    assert (backend.read(cells) == 6).all()


@pytest.mark.usefixtures("side_by_side")
def test_w5_a_result_holds_what_was_there_in_its_turn(backend: OpenclBackend, busy: Busy, cells: Any) -> None:
    long = busy()
    backend.async_set_value(cells, 1)
    first = backend.download(cells)
    backend.async_set_value(cells, 2)
    second = backend.download(cells[::3])
    assert not long.is_done
    assert not first.is_done
    assert (first.array() == 1).all()
    assert second.array().tolist() == [2] * 6


def test_b9_an_engines_own_queue_is_a_stream(backend: OpenclBackend, cells: Any) -> None:
    queue = cl.CommandQueue(backend.queue().context)
    event = backend.async_set_value(cells, 9, stream=queue)
    raw = np.empty(16, np.int32)
    cl.enqueue_copy(queue, raw, cells.buffer, src_offset=cells.offset)  # in the order of the queue
    assert (raw == 9).all()
    event.sync()
    for handle in (queue.int_ptr, np.int64(queue.int_ptr)):
        backend.async_set_value(cells, 10, stream=handle).sync()
    assert backend.queue(queue).int_ptr == queue.int_ptr
    assert backend.stream(backend.queue()) == 0
    with backend.on_stream(queue):
        assert backend.stream() == queue.int_ptr
    assert backend.stream() == 0


def test_b9_what_is_no_stream_here_is_refused(backend: OpenclBackend, cells: Any) -> None:
    with pytest.raises(sl.DeviceError, match=r"-36 \(CL_INVALID_COMMAND_QUEUE\): no such stream; allowed: 0, what"):
        backend.async_set_value(cells, 1, stream=12345)
    device = backend.queue().device
    with pytest.raises(ValueError, match="another context"):
        backend.async_set_value(cells, 1, stream=cl.CommandQueue(cl.Context([device])))
    mixed = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    if device.queue_properties & mixed:
        with pytest.raises(ValueError, match="runs out of order"):
            backend.async_set_value(cells, 1, stream=cl.CommandQueue(backend.queue().context, properties=mixed))
        with pytest.raises(ValueError, match="runs out of order"):
            OpenclBackend(queue=cl.CommandQueue(backend.queue().context, properties=mixed))
    with pytest.raises(TypeError, match=r"queue is int, allowed: pyopencl\.CommandQueue"):
        OpenclBackend(queue=3)
    assert not backend.read(cells).any()


def test_the_engines_queue_is_stream_0_where_it_is_given(backend: OpenclBackend) -> None:
    queue = cl.CommandQueue(cl.Context([backend.queue().device]))
    own = OpenclBackend(queue=queue)
    assert own.stream(queue) == 0
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    own.async_set_value(own.wrap(buffer, (16,), "int32"), 4)
    raw = np.empty(16, np.int32)
    cl.enqueue_copy(queue, raw, buffer)
    assert (raw == 4).all()
    own.close()
    queue.finish()  # the engine's own: not closed with the backend
