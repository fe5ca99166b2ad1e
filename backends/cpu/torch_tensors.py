"""torch tensors in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from slotline.backends.cpu.tensors import Tensors
from slotline.backends.shared.torch_look import TorchLook
from slotline.compat import torch as compat
from slotline.core.device import TensorInfo


class TorchTensors(Tensors):
    """Strided CPU tensors, views and parameters too."""

    framework = "torch"

    def __init__(self) -> None:
        self._look = TorchLook("cpu")
        self._torch, self.lacks = self._look.torch, self._look.lacks
        self.versions = {"torch": self._look.version}

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
        torch = self._torch
        with torch.inference_mode():  # which may write what an engine made in it, and what it did not
            if torch.get_default_device().type == "cpu":
                yield
            else:
                with torch.device("cpu"):
                    yield

    def namespace(self) -> Any:
        return compat.namespace()
