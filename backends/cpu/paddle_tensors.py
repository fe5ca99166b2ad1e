"""paddle tensors in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from slotline.backends.cpu.tensors import Tensors
from slotline.backends.shared.paddle_look import PaddleLook
from slotline.compat import paddle as compat
from slotline.core.device import TensorInfo


class PaddleTensors(Tensors):
    """Dense CPU tensors and views, eager mode."""

    framework = "paddle"
    lacks = PaddleLook.lacks

    def __init__(self) -> None:
        self._look = PaddleLook("cpu")
        self._paddle = self._look.paddle
        self.versions = {"paddle": self._look.version}

    def wrap(self, array: NDArray[Any]) -> Any:
        return compat.from_numpy(array)

    def inspect(self, tensor: Any) -> TensorInfo | None:
        return self._look.inspect(tensor)

    def why_not(self, tensor: Any) -> str:
        return self._look.why_not(tensor)

    def why_not_written(self, tensor: Any) -> str:
        return self._look.why_not_written(tensor)

    @contextmanager
    def running(self) -> Iterator[None]:
        device = self._paddle.get_device()
        if device == "cpu":
            yield
            return
        self._paddle.set_device("cpu")
        try:
            yield
        finally:
            self._paddle.set_device(device)

    def namespace(self) -> Any:
        return compat.namespace()
