"""OpenclTensor: views as NumPy gives them, and what is refused (rules W1, F4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slotline_opencl import OpenclBackend

import slotline as sl


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Basic indices with positive steps, perhaps fewer than axes, perhaps with ``...`` and None."""
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    out: list[Any] = []
    for axis, size in enumerate(shape):
        if axis == first:
            out += [Ellipsis] if draw(st.booleans()) or last < len(shape) else []
        if first <= axis < last:
            continue
        if size and draw(st.booleans()):
            out.append(draw(st.integers(-size, size - 1)))
        else:
            bound = st.none() | st.integers(-size - 2, size + 2)
            out.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
    if draw(st.booleans()):
        out.insert(draw(st.integers(0, len(out))), None)
    return tuple(out)


@given(st.data())
def test_w1_views_are_numpys(backend: OpenclBackend, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    whole = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    tensor = backend.empty([("x", shape, "int16")])["x"]
    backend.async_set_value(tensor, whole)
    first = data.draw(indices(shape))
    index = data.draw(st.sampled_from([first, first[0]])) if len(first) == 1 else first
    dots = (*index, ...) if isinstance(index, tuple) and ... not in index else index
    want = whole[dots] if isinstance(dots, tuple) else whole[dots, ...] if dots is not ... else whole[...]
    view = tensor[index]
    assert view.shape == want.shape
    assert (view.size, view.ndim, view.nbytes) == (want.size, want.ndim, want.nbytes)
    assert np.array_equal(backend.read(view), want)
    assert view.memory is tensor.memory


def test_what_is_no_basic_index_is_refused(backend: OpenclBackend) -> None:
    tensor = backend.empty([("x", (4, 3), "int32")])["x"]
    kinds: tuple[Any, ...] = ([0, 1], np.array([0]), True, "a", 1.0)
    for index in kinds:
        with pytest.raises(TypeError, match="allowed: integers, slices"):
            tensor[index]
    outside: tuple[Any, ...] = (4, -5, (0, 3), (0, 0, 0), (..., ...))
    for index in outside:
        with pytest.raises(IndexError):
            tensor[index]
    with pytest.raises(ValueError, match="a step is -1, allowed: 1 and more"):
        tensor[::-1]
    assert [row.shape for row in tensor] == [(3,)] * 4


def test_nothing_reads_or_writes_a_tensor_in_passing(backend: OpenclBackend) -> None:
    tensor = backend.empty([("x", (4,), "int32")])["x"]
    with pytest.raises(TypeError, match=r"backend\.read"):
        np.asarray(tensor)
    with pytest.raises(TypeError, match="async_set_value"):
        tensor[0] = 1
    with pytest.raises(TypeError, match="truth value"):
        bool(tensor)
    with pytest.raises(TypeError, match="no length"):
        len(tensor[0])
    assert repr(tensor) == "OpenclTensor(int32 [4] at byte 0)"


def test_b10_a_layout_is_one_memory_object(backend: OpenclBackend) -> None:
    config = sl.BatchConfig(max_num_seqs=4, max_model_len=32, max_chunk_tokens=8, block_size=4, vocab_size=100)
    batch = sl.SlotBatch(sl.target_layout(config), backend)
    tensors = [batch[f.name] for f in batch.layout if f.on_device]
    assert len({t.buffer.int_ptr for t in tensors}) == 1
    assert all(t.offset % 256 == 0 for t in tensors)


class TestWrap:
    """An engine's own memory."""

    def test_f4_the_memory_is_used_as_it_is(self, backend: OpenclBackend) -> None:
        queue = backend.queue()
        buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4096)
        tensor = backend.wrap(buffer, (4, 3), "int32", offset=8, strides=(40, 4))
        backend.async_set_value(tensor, np.arange(12).reshape(4, 3))
        raw = np.empty(1024, np.int32)
        cl.enqueue_copy(queue, raw, buffer)
        assert np.array_equal(raw[2 : 2 + 40].reshape(4, 10)[:, :3], np.arange(12).reshape(4, 3))
        assert tensor.buffer.int_ptr == buffer.int_ptr

    def test_f4_an_array_of_pyopencl_says_its_own_shape(self, backend: OpenclBackend) -> None:
        array = pyopencl.array.zeros(backend.queue(), (4, 6), np.float32)
        tensor = backend.wrap(array[:, 1:4])
        assert (tensor.shape, tensor.strides, tensor.offset) == ((4, 3), (24, 4), 4)
        backend.async_set_value(tensor, 1.5)
        backend.synchronize()
        got = array.get()
        assert (got[:, 1:4] == 1.5).all()
        assert not got[:, [0, 4, 5]].any()

    def test_f4_parts_of_one_buffer_that_overlap_are_seen(self, backend: OpenclBackend) -> None:
        buffer = cl.Buffer(backend.queue().context, cl.mem_flags.READ_WRITE, 8192)
        align = backend.queue().device.mem_base_addr_align // 8
        part = buffer.get_sub_region(align, 4096)
        whole = backend.wrap(buffer, (2048,), "int32")
        cut = backend.wrap(part, (1024,), "int32")
        assert (cut.memory, cut.offset) == (whole.memory, align)
        config = sl.BatchConfig(max_num_seqs=4, max_model_len=32, max_chunk_tokens=8, block_size=4, vocab_size=100)
        layout = sl.target_layout(config)
        tensors = {
            "top_k": backend.wrap(part, layout.shape("top_k"), "int32"),
            "step_idx": backend.wrap(buffer, layout.shape("step_idx"), "int32", offset=align + 4),
        }
        with pytest.raises(sl.LayoutError, match="cannot share memory"):
            sl.SlotBatch(layout, backend, tensors=tensors)

    def test_f4_what_does_not_fit_is_refused(self, backend: OpenclBackend) -> None:
        context = backend.queue().context
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
        wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
            (np.zeros(4), {}, TypeError, r"memory is ndarray, allowed: pyopencl\.Buffer"),
            (buffer, {}, TypeError, "needs shape and dtype"),
            (buffer, {"shape": (4,), "dtype": "complex64"}, ValueError, "dtype is 'complex64', allowed: "),
            (buffer, {"shape": (17,), "dtype": "int32"}, ValueError, "ends at byte 68, the buffer has 64"),
            (buffer, {"shape": (4,), "dtype": "int32", "offset": 2}, ValueError, "multiples of the 4 bytes"),
            (buffer, {"shape": (4,), "dtype": "int32", "offset": -4}, ValueError, "none below 0"),
            (buffer, {"shape": (2, 2), "dtype": "int32", "strides": (4,)}, ValueError, "as many"),
        ]
        for memory, options, error, text in wrong:
            with pytest.raises(error, match=text):
                backend.wrap(memory, **options)
        other = OpenclBackend()
        with pytest.raises(ValueError, match="another OpenCL context; make the backend with queue="):
            other.wrap(buffer, (4,), "int32")
        with pytest.raises(TypeError, match="a tensor of another OpenCL backend"):
            backend.async_set_value(other.empty([("x", (4,), "int32")])["x"], 1)
        other.close()

    def test_w_memory_that_kernels_must_not_write_is_a_source_only(self, backend: OpenclBackend) -> None:
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        context = backend.queue().context
        source = backend.wrap(cl.Buffer(context, flags, hostbuf=np.arange(4, dtype=np.int32)), (4,), "int32")
        target = backend.empty([("x", (4,), "int32")])["x"]
        backend.async_set_value(target, source)
        assert backend.read(target).tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="CL_MEM_READ_ONLY"):
            backend.async_set_value(source, 1)
        closed = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.HOST_NO_ACCESS, 64)
        with pytest.raises(ValueError, match="CL_MEM_HOST_NO_ACCESS"):
            backend.wrap(closed, (4,), "int32")

    def test_the_engines_memory_outlives_the_backend(self) -> None:
        own = OpenclBackend()
        queue = own.queue()
        buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
        own.async_set_value(own.wrap(buffer, (16,), "int32"), 7)
        own.close()
        raw = np.empty(16, np.int32)
        cl.enqueue_copy(queue, raw, buffer)
        assert (raw == 7).all()
