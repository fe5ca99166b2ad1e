"""What an engine has in its hands on the simulated device: tensors, kernels, host buffers (rules W4, W5, B9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import simulated

import slotline as sl
from slotline.backends.sim.memory import POISON


def test_a_tensor_is_looked_at_without_waiting_and_that_is_a_race() -> None:
    sim = simulated(0)
    x = sim.empty([("x", (4, 3), "int32")])["x"]
    event = sim.engine.write(x, source=5)
    for look in (x.numpy, x.tolist, lambda: np.asarray(x), lambda: x[1:3].numpy()):
        with pytest.raises(sl.SlotlineError, match=r"(?s)race on 'x', row.*reads it:\n    a read by the host"):
            look()
    event.sync()
    assert x.tolist() == [[5] * 3] * 4
    assert np.asarray(x, np.float64).dtype == np.float64
    x.numpy()[:] = 0  # a copy
    assert x.tolist() == [[5] * 3] * 4


def test_a_tensor_has_the_views_of_basic_slicing() -> None:
    sim = simulated(0)
    x, model = sim.empty([("x", (4, 6), "int32")])["x"], np.arange(24, dtype=np.int32).reshape(4, 6)
    sl.async_set_value(x, model)
    sim.synchronize()
    for index in (1, np.int64(2), slice(1, 3), (slice(None), slice(1, 6, 2)), ..., (..., 2), (None, 1), (1, 2)):
        assert x[index].shape == model[index].shape
        assert x[index].tolist() == model[index].tolist()
    assert x.reshape(2, 12)[0].tolist() == model.reshape(2, 12)[0].tolist()
    assert (len(x), x.ndim, x.size, x.itemsize, x.dtype, x.strides) == (4, 2, 24, 4, np.int32, (24, 4))
    assert repr(x) == "SimTensor('x', int32 [4, 6])"
    with pytest.raises(ValueError, match="without a copy"):
        x[:, :3].reshape(12)


@pytest.mark.parametrize("index", [[0, 1], np.array([0]), True, 1.5, (0, [1])], ids=repr)
def test_a_tensor_refuses_other_indices(index: Any) -> None:
    x = simulated(0).empty([("x", (4, 6), "int32")])["x"]
    with pytest.raises(TypeError, match="allowed: integers, slices"):
        x[index]


def test_a_tensor_is_written_by_one_way_only_and_is_no_truth() -> None:
    x = simulated(0).empty([("x", (4,), "int32")])["x"]
    with pytest.raises(TypeError, match="async_set_value"):
        x[0] = 1
    with pytest.raises(TypeError, match="truth value"):
        bool(x)


def test_a_tensor_of_another_device_is_refused() -> None:
    one, two = simulated(0), simulated(0)
    x = two.empty([("x", (4,), "int32")])["x"]
    with pytest.raises(TypeError, match="another simulated device"):
        one.engine.read(x)
    with pytest.raises(TypeError, match="another simulated device"):
        one.async_set_value(one.empty([("y", (4,), "int32")])["y"], x)


# -- an engine's own kernels


def test_kernels_touch_rows() -> None:
    sim = simulated(0)
    x = sim.empty([("x", (6, 2), "int64")])["x"]
    side = sim.new_stream()
    sim.engine.write(x, rows=slice(0, 3), source=1)
    sim.engine.write(x, rows=[3, 5], source=[7, 8], stream=side)  # other rows: no race
    sim.engine.write(x, rows=4, source=2)
    with pytest.raises(sl.SlotlineError, match="race on 'x', rows 3, 5: "):
        sim.engine.read(x, stream=0)
    sim.synchronize()
    assert sim.engine.read(x).array().tolist() == [[1, 1], [1, 1], [1, 1], [7, 8], [2, 2], [7, 8]]
    assert sim.engine.read(x, rows=[5, 0]).array().tolist() == [[7, 8], [1, 1]]
    later = sim.engine.read(x, rows=4)
    sim.engine.write(x, rows=4, source=9)
    assert later.array().tolist() == [2, 2]  # W5: in the order of the stream


def test_a_kernel_may_write_only_what_it_says() -> None:
    sim = simulated(0, "eager")
    x = sim.empty([("x", (2,), "int64")])["x"]

    def write(array: Any) -> None:
        array[...] = 1

    with pytest.raises(ValueError, match="read-only"):
        sim.engine.kernel("wrong", write, reads=[x])
    sim.engine.kernel("right", write, writes=[x]).sync()
    assert x.tolist() == [1, 1]


# -- its own host memory


def test_a_host_buffer_is_read_late_and_its_uses_are_seen() -> None:
    sim = simulated(0)
    x, buffer = sim.empty([("x", (2, 2), "int32")])["x"], sim.engine.host_buffer((2, 2), "int32", "ids")
    buffer.write([[1, 2], [3, 4]])
    event = buffer.upload(x)
    with pytest.raises(sl.SlotlineError, match="race on host buffer 'ids', bytes 0 to 15"):
        buffer.write(0)
    assert buffer.read().tolist() == [[1, 2], [3, 4]]  # two may read
    event.sync()
    buffer.write(0)
    back = buffer.download(x)
    with pytest.raises(sl.SlotlineError, match="a read by the host"):
        buffer.read()
    assert buffer._array.view(np.uint8).tolist() == [[POISON] * 8] * 2
    back.sync()
    assert buffer.read().tolist() == [[1, 2], [3, 4]]


def test_a_host_buffer_fits_its_tensor_or_says_so() -> None:
    sim = simulated(0)
    tensors, buffer = sim.empty([("x", (2, 4), "int32")]), sim.engine.host_buffer((2, 2), "int32")
    for wrong in (tensors["x"], tensors["x"][:, ::2], tensors["x"][0]):
        with pytest.raises(ValueError, match="needed: contiguous, int32"):
            buffer.upload(wrong)


def test_a_host_buffer_that_is_freed_too_early_is_a_race() -> None:
    sim = simulated(0)
    x, buffer = sim.empty([("x", (2,), "int32")])["x"], sim.engine.host_buffer((2,), "int32", "ids")
    buffer.write(5)
    event = buffer.upload(x)
    with pytest.raises(sl.SlotlineError, match=r"(?s)race on host buffer 'ids', .*the release of the memory"):
        buffer.free()
    event.sync()
    buffer.free()
    assert x.tolist() == [5, 5]
    for use in (buffer.read, lambda: buffer.write(0), lambda: buffer.upload(x), buffer.free):
        with pytest.raises(sl.DeviceError, match="host buffer 'ids' was freed before"):
            use()


def test_a_host_buffer_that_is_dropped_stays_until_its_copy_has_run() -> None:
    """docs/sim.md, "Limits": so dropping one is never the fault that is found."""
    sim = simulated(0)
    x, buffer = sim.empty([("x", (2,), "int32")])["x"], sim.engine.host_buffer((2,), "int32")
    buffer.write(5)
    buffer.upload(x)
    del buffer
    assert sim.read(x).tolist() == [5, 5]


def test_a_tensor_whose_memory_goes_to_another_too_early_is_told_by_a_kernel() -> None:
    """docs/sim.md, "Limits"."""
    sim = simulated(0)
    x = sim.empty([("x", (2,), "int32")])["x"]
    sim.engine.read(x, stream=sim.new_stream())
    with pytest.raises(sl.SlotlineError, match=r"(?s)race on 'x', .*kernel 'free x'"):
        sim.engine.kernel("free x", writes=[x])


@pytest.mark.parametrize(
    ("shape", "error", "says"),
    [
        ((2, -1), ValueError, r"'ids' has shape \[2, -1\], allowed: whole numbers of at least 0"),
        ((2.5,), TypeError, r"'ids' has shape \(2.5,\), allowed: a tuple of whole numbers"),
        (4, TypeError, "'ids' has shape 4, allowed: a tuple"),
    ],
)
def test_a_shape_that_is_none_is_named(shape: Any, error: type[Exception], says: str) -> None:
    sim = simulated(0)
    with pytest.raises(error, match=says):
        sim.engine.host_buffer(shape, "int32", "ids")
    with pytest.raises(error, match=says):
        sim.empty([("ids", shape, "int32")])


def test_the_current_stream_is_each_blocks_own() -> None:  # B9
    sim = simulated(0)
    x, side = sim.empty([("x", (2,), "int32")])["x"], sim.new_stream()
    with sim.on_stream(side):
        assert sim.stream() == side
        event = sim.engine.write(x, source=3)
    assert sim.stream() == 0
    event.wait(0)
    assert sim.engine.read(x).array().tolist() == [3, 3]
    with pytest.raises(sl.DeviceError, match="use of stream 77"), sim.on_stream(77):
        pass


def test_what_is_not_a_tensor_of_the_device_is_named() -> None:
    sim = simulated(0)
    with pytest.raises(TypeError, match="host memory"):
        sim.engine.kernel("k", reads=[np.zeros(3)])
    for use in (sim.engine.read, sim.engine.write):
        with pytest.raises(TypeError, match="list"):
            use([1, 2])


def test_a_block_of_several_buffers_has_a_name_for_each() -> None:
    sim = simulated(0)
    block = sim.empty([("block", (8, 4), "int32")])["block"]
    sim.engine.name(block[:4], "keys")
    sim.engine.name(block[4:], "values")
    sim.engine.write(block, rows=slice(0, 8), stream=sim.new_stream())
    with pytest.raises(sl.SlotlineError, match="race on values, rows 1 to 2: "):
        sim.engine.read(block[5:7])


def test_read_and_write_with_rows_and_a_stream_are_kernels() -> None:
    sim = simulated(3)
    x, side = sim.empty([("x", (4, 2), "int32")])["x"], sim.new_stream()
    sim.write(x, source=1, stream=side)
    sim.write(x, rows=[1, 3], source=7, stream=side)
    seen = sim.read(x, slice(1, 3), side)
    assert not seen.is_done
    assert seen.array().tolist() == [[7, 7], [1, 1]]
    assert sim.read(x, rows=3).array().tolist() == [7, 7]
    assert sim.read(x).tolist() == [[1, 1], [7, 7], [1, 1], [7, 7]]  # after all queued work
