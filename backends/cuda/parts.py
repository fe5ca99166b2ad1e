"""What a CUDA backend is made of here: which framework, runtime and way of applying, found out by trying."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.cuda.apply_nvrtc import NvrtcApplier
from slotline.backends.cuda.runtime import CudaRuntime, device_info
from slotline.backends.shared.parts import Parts
from slotline.compat import cuda
from slotline.core.applier import Applier
from slotline.core.device import Abilities, Probe
from slotline.core.device_tensors import DeviceTensors
from slotline.core.errors import BackendUnavailable, DeviceError
from slotline.core.runtime import Runtime
from slotline.core.staging import staging_kind


def choose_framework(framework: str | None) -> str:
    """The one that is asked for, else torch, else paddle if only that is installed."""
    if framework is not None:
        return framework
    return "paddle" if find_spec("torch") is None and find_spec("paddle") is not None else "torch"


def find(framework: str | None, device: int) -> Probe:
    """Whether a GPU can be used; the cheap questions first, since a framework takes seconds to import."""
    name = choose_framework(framework)
    versions: dict[str, str] = {}
    details: dict[str, str] = {}
    why = ""
    try:
        cuda.require_driver()
    except cuda.NoDriver as error:
        raise cuda.NoDriver("; ".join([str(error), *_lacking(name)])) from error
    try:
        count = int(cuda.call(cuda.runtime().cudaGetDeviceCount))
        versions["bindings"] = cuda.version()
        if not 0 <= device < count:
            return Probe(
                usable=False, reason=f"device {device} of {count}; choose with SLOTLINE_DEVICE", versions=versions
            )
        details = device_info(device)
    except DeviceError as error:  # a driver without a device, say
        return Probe(usable=False, reason=str(error), versions={"bindings": cuda.version()})
    except BackendUnavailable as error:
        why = f"; {error}"  # none, or newer than the driver; a framework brings a runtime of its own
    if find_spec(name) is None:
        return Probe(usable=False, reason=f"{_not_installed(name)}{why}", versions=versions)
    try:
        tensors = make_tensors(name, device)
    except BackendUnavailable as error:
        return Probe(usable=False, reason=f"{error}{why}", versions=versions)
    versions |= tensors.versions
    parts = make(name, device, tensors)
    _, staging = staging_kind(parts.runtime)
    return Probe(usable=True, versions=versions, details={**details, **parts.details, "staging": staging})


def _lacking(framework: str) -> list[str]:
    """What is missing beside the driver, so that all can be installed at once; no framework is imported to know it."""
    lacking = [] if find_spec(framework) is not None else [_not_installed(framework)]
    try:
        cuda.runtime()
    except BackendUnavailable as error:
        lacking.append(str(error))
    return lacking


def _not_installed(framework: str) -> str:
    return f"{framework} is not installed; install its CUDA build"


def make_tensors(framework: str, device: int) -> DeviceTensors:
    """The framework's side. ``BackendUnavailable`` where this build of it has no CUDA or sees no device."""
    if framework == "paddle":
        from slotline.backends.shared.paddle_tensors import PaddleTensors, require_device

        require_device("gpu", device)
        return PaddleTensors("gpu", device)
    from slotline.backends.shared.torch_tensors import TorchTensors, require_device

    require_device("cuda", device)
    return TorchTensors("cuda", device)


def make(framework: str, device: int, tensors: DeviceTensors | None = None) -> Parts:
    """The parts, each the best that works; what was passed over is told in ``details``."""
    tensors = make_tensors(framework, device) if tensors is None else tensors
    details: dict[str, str] = {}
    try:
        runtime: Runtime = CudaRuntime(device, tensors.current_stream)
        details["runtime"] = "cuda-bindings"
    except BackendUnavailable as error:
        runtime = _alone(framework, tensors)
        details["runtime"] = f"{framework} alone ({error})"
    applier, why = _applier(framework, runtime, device, tensors)
    if applier is None:
        runtime = runtime if not runtime.addresses else _alone(framework, tensors)
        applier = _scatter(framework, runtime, tensors)
    details["apply"] = applier.name + (f" ({'; '.join(why)})" if why else "")
    abilities = Abilities(
        streams=True, pinned_memory=True, async_upload=True, packed_apply=applier.packed, array_namespace=True
    )
    return Parts(runtime, tensors, applier, abilities, details)


def _applier(framework: str, runtime: Runtime, device: int, tensors: Any) -> tuple[Applier | None, list[str]]:
    """Triton where torch runs it, else our CUDA C; and why not the ones before."""
    why: list[str] = []
    if framework == "torch":
        from slotline.backends.shared.apply_triton import TritonApplier

        def upload(table: NDArray[np.int64]) -> Any:
            return tensors.torch.from_numpy(table).to(tensors.device)

        try:
            return TritonApplier(upload, tensors.inspect), why
        except BackendUnavailable as error:
            why.append(f"no triton: {error}")
    try:
        return NvrtcApplier(runtime, device, tensors.inspect), why
    except (BackendUnavailable, DeviceError) as error:
        why.append(f"no nvrtc: {error}")
    return None, why


def _alone(framework: str, tensors: Any) -> Runtime:
    """The runtime through the framework."""
    if framework == "paddle":
        from slotline.backends.shared.paddle_runtime import PaddleRuntime

        return PaddleRuntime(tensors)
    from slotline.backends.shared.torch_runtime import TorchRuntime

    return TorchRuntime(tensors)


def _scatter(framework: str, runtime: Runtime, tensors: DeviceTensors) -> Applier:
    from slotline.backends.shared.scatter import ScatterApplier

    return ScatterApplier(tensors.namespace(), runtime.tensor_at, tensors.viewed, tensors.recast)
