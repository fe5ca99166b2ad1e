"""The simulated device's tensors, as ``core.streamed`` wants them; host arrays are NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.runtime import SimRuntime
from slotline.backends.sim.tensor import SimTensor, inside
from slotline.compat.numpy import enable_bfloat16
from slotline.core import values
from slotline.core.device import TensorInfo
from slotline.core.device_tensors import DeviceTensors
from slotline.core.field import DTYPES
from slotline.core.layout import numpy_dtype
from slotline.core.namespace import NUMPY


class SimTensors(DeviceTensors):
    """Tensors of one machine; another machine's are refused."""

    framework = "numpy"
    versions = {"numpy": np.__version__}  # noqa: RUF012

    def __init__(self, runtime: SimRuntime) -> None:
        self.runtime, self.machine = runtime, runtime.machine
        enable_bfloat16()

    def empty(self, shape: tuple[int, ...], dtype: str) -> SimTensor:
        kind = numpy_dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        with self.machine.lock:
            allocation = self.machine.memory.allocate(nbytes, "device", f"a tensor of {dtype} {list(shape)}")
        allocation.call(0, allocation.name, nbytes // shape[0] if shape and shape[0] else 0)
        return SimTensor(self.machine, allocation, allocation.array(shape, kind))

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, SimTensor) or tensor.machine is not self.machine:
            return None
        return TensorInfo(
            shape=tensor.shape, strides=tensor.strides, dtype=tensor.dtype.name, place="sim", pointer=tensor.pointer
        )

    def why_not(self, tensor: Any) -> str:
        if isinstance(tensor, SimTensor):
            return "a tensor of another simulated device; each backend has its own"
        if isinstance(tensor, np.ndarray):
            return f"host memory, {tensor.dtype} {list(tensor.shape)}; backend.upload gives a tensor"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        return ""

    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        if isinstance(tensor, SimTensor):
            raise TypeError(f"a source is {self.why_not(tensor)}")
        if not isinstance(tensor, np.ndarray) or tensor.dtype.name not in DTYPES:
            return None
        return tensor

    def host_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def copy(self, dst: SimTensor, src: SimTensor) -> None:
        into, out_of = inside(dst), inside(src)

        def run() -> None:
            into[...] = values.from_host(out_of.copy(), into.dtype.name, into.shape, checked=False)

        if into.size:
            self.machine.enqueue(
                self.runtime.current_stream(),
                "a copy of a tensor",
                run,
                [self.machine.array(out_of)],
                [self.machine.array(into)],
            )

    def current_stream(self) -> int:
        return self.runtime.current_stream()

    @contextmanager
    def running(self, stream: int) -> Iterator[None]:
        with self.runtime.on_stream(stream):
            yield

    def namespace(self) -> Any:
        return NUMPY
