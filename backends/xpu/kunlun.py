"""Kunlun XPUs, through paddle's build for them.

A plain upload there waits for queued work. So packets go by the runtime library's asynchronous copy where it is found;
else the backend declares that it has no ``async_upload``, and each insertion waits once (B12).
"""

from __future__ import annotations

from importlib.util import find_spec

from slotline.backends.shared.parts import Parts
from slotline.backends.xpu.nodes import require_node
from slotline.backends.xpu.xpurt import XpuRt
from slotline.core.device import Abilities, Probe
from slotline.core.runtime import Copy

KIND = "xpu"
"""What paddle calls the device."""


def find(device: int) -> Probe:
    """Whether a Kunlun XPU can be used."""
    from slotline.backends.shared.paddle_tensors import require_device

    missing = "paddle is not installed; its build for Kunlun comes from the vendor, no public index has it"
    lacking = missing if find_spec("paddle") is None else ""
    require_node("a Kunlun XPU", "/dev/xpu0", "/dev/xpuctrl", lacking=lacking)
    if lacking:
        return Probe(usable=False, reason=lacking)
    require_device(KIND, device)
    parts = make(device)
    return Probe(usable=True, versions=parts.tensors.versions, details=parts.details)


def make(device: int, kind: str = KIND, library: XpuRt | None = None) -> Parts:
    """The parts of the backend. ``kind``, ``library``: other ones for tests without the hardware."""
    from slotline.backends.shared.paddle_runtime import PaddleRuntime
    from slotline.backends.shared.paddle_tensors import PaddleTensors
    from slotline.backends.shared.scatter import ScatterApplier

    tensors = PaddleTensors(kind, device)
    xpurt = XpuRt() if library is None else library

    class KunlunRuntime(PaddleRuntime):
        """Streams and events by paddle, copies and page-locked memory by the runtime library."""

        addresses = True

        def allocate_host(self, nbytes: int) -> int:
            return xpurt.allocate_host(nbytes)

        def free_host(self, address: int) -> None:
            self.synchronize()
            xpurt.free_host(address)

        def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
            xpurt.copy(dst, src, nbytes, way, stream)

    runtime = KunlunRuntime(tensors) if xpurt.found else PaddleRuntime(tensors)
    applier = ScatterApplier(tensors.namespace(), runtime.tensor_at, tensors.viewed, tensors.recast)
    upload = "asynchronous, by the runtime library" if xpurt.found else f"each insertion waits once ({xpurt.why})"
    abilities = Abilities(
        streams=True, pinned_memory=xpurt.found, async_upload=xpurt.found, packed_apply=False, array_namespace=True
    )
    return Parts(runtime, tensors, applier, abilities, {"upload": upload, "apply": applier.name})
