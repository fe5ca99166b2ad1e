"""Intel's GPUs, through torch's build for them (``torch.xpu``)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.shared.parts import Parts
from slotline.backends.xpu.nodes import require_node
from slotline.core.applier import Applier
from slotline.core.device import Abilities, Probe
from slotline.core.errors import BackendUnavailable
from slotline.core.staging import staging_kind

KIND = "xpu"
"""What torch calls the device."""


def find(device: int) -> Probe:
    """Whether an Intel GPU can be used."""
    from slotline.backends.shared.torch_tensors import require_device

    missing = "torch is not installed; install its build for Intel GPUs (torch's start page tells the command)"
    lacking = missing if find_spec("torch") is None else ""
    require_node("an Intel GPU", "/dev/dri", "/dev/dxg", lacking=lacking)
    if lacking:
        return Probe(usable=False, reason=lacking)
    require_device(KIND, device)
    parts = make(device)
    _, staging = staging_kind(parts.runtime)
    return Probe(usable=True, versions=parts.tensors.versions, details={**parts.details, "staging": staging})


def make(device: int, kind: str = KIND) -> Parts:
    """The parts of the backend. ``kind``: another device of torch's, for tests without the hardware."""
    from slotline.backends.shared.torch_runtime import TorchRuntime
    from slotline.backends.shared.torch_tensors import TorchTensors

    tensors = TorchTensors(kind, device)
    runtime = TorchRuntime(tensors)
    applier, why = _applier(tensors, runtime)
    abilities = Abilities(
        streams=True, pinned_memory=True, async_upload=True, packed_apply=applier.packed, array_namespace=True
    )
    details = {"apply": applier.name + (f" (no triton: {why})" if why else "")}
    return Parts(runtime, tensors, applier, abilities, details)


def _applier(tensors: Any, runtime: Any) -> tuple[Applier, str]:
    """Triton where it drives the device, else scatters, and why."""
    from slotline.backends.shared.apply_triton import TritonApplier
    from slotline.backends.shared.scatter import ScatterApplier

    def upload(table: NDArray[np.int64]) -> Any:
        return tensors.torch.from_numpy(table).to(tensors.device)

    try:
        return TritonApplier(upload, tensors.inspect), ""
    except BackendUnavailable as error:
        return ScatterApplier(tensors.namespace(), runtime.tensor_at, tensors.viewed, tensors.recast), str(error)
