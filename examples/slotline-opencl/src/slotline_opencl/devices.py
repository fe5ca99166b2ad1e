"""Which OpenCL devices there are, and whether one can be used (rules B3, B4, B7)."""

from __future__ import annotations

import os
import re
from typing import Any

from slotline.device import BackendUnavailable

POCL = "for the CPU PoCL: pip install 'pyopencl[pocl]'"
_ICD_VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES")


def load_pyopencl() -> Any:
    """pyopencl; ``BackendUnavailable`` with what to install, or with the original error chained."""
    try:
        import pyopencl
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "pyopencl":
            raise BackendUnavailable(f"pyopencl is installed but lacks a package: {error}") from error
        raise BackendUnavailable(f"pyopencl is not installed: pip install pyopencl, {POCL}") from error
    except ImportError as error:
        raise BackendUnavailable(f"pyopencl is installed but cannot be imported: {error}") from error
    return pyopencl


def all_devices() -> list[Any]:
    """Every OpenCL device, platform after platform, in the order of the ICD loader; ``device=`` counts them.

    A platform that fails takes the others' devices down with it only where it is the only one.
    """
    cl = load_pyopencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        why = f"no OpenCL platform is registered ({error}){_where()}; install the device's driver, {POCL}"
        raise BackendUnavailable(why) from error
    found, without = [], []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error as error:  # mostly CL_DEVICE_NOT_FOUND: a driver that is installed, and no device
            without.append(f"{platform.name.strip()}: {error}")
    if not found:
        why = f"no OpenCL platform has a device ({'; '.join(without)}); install a driver that finds it, {POCL}"
        raise BackendUnavailable(why)
    return found


def _where() -> str:
    """Settings that tell the ICD loader where to look; a wrong one hides every device."""
    said = [f"{name}={os.environ[name]!r}" for name in _ICD_VARIABLES if name in os.environ]
    return f", looked for by {' and '.join(said)}" if said else ""


def choose(index: int) -> Any:
    """The device of this number; ``BackendUnavailable`` with what there is, or what it lacks."""
    devices = all_devices()
    if not 0 <= index < len(devices):
        names = ", ".join(f"{i}: {d.name.strip()} ({d.platform.name.strip()})" for i, d in enumerate(devices))
        raise BackendUnavailable(f"device {index} is not there, allowed: {names}; choose with SLOTLINE_DEVICE")
    problem = lacks(devices[index])
    if problem:
        raise BackendUnavailable(f"device {index}, {devices[index].name.strip()}: {problem}")
    return devices[index]


def require_queue(queue: Any) -> Any:
    """The device of an engine's own queue, checked as ``choose`` does, and the queue as well."""
    cl = load_pyopencl()
    if not isinstance(queue, cl.CommandQueue):
        raise TypeError(f"queue is {type(queue).__name__}, allowed: pyopencl.CommandQueue")
    require_in_order(queue)
    problem = lacks(queue.device)
    if problem:
        raise BackendUnavailable(f"the queue's device, {queue.device.name.strip()}: {problem}")
    return queue.device


def require_in_order(queue: Any) -> None:
    """``ValueError`` for a queue whose commands may pass each other."""
    if queue.properties & load_pyopencl().command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError("the queue runs out of order, allowed: in-order queues")


def lacks(device: Any) -> str:
    """What a device lacks of what this backend needs; empty if nothing."""
    if tuple(int(part) for part in _version(device).split(".")) < (1, 2):
        return f"it has {device.version.strip()}, needed: OpenCL 1.2 or newer"
    if not device.available:
        return "its driver says that it is not available"
    if not device.compiler_available:
        return "its driver has no compiler, which the apply kernel needs"
    if not device.endian_little:
        return "it is big-endian, and packets are little-endian"
    if device.profile.strip("\0 ") != "FULL_PROFILE":
        return f"it has the {device.profile}, needed: FULL_PROFILE, for 64-bit whole numbers"
    return ""


def _version(device: Any) -> str:
    """The standard says that ``CL_DEVICE_VERSION`` begins with "OpenCL 1.2 " or the like."""
    found = re.match(r"OpenCL (\d+\.\d+)", device.version)
    return found[1] if found else "0.0"


def kind(device: Any) -> str:
    """``cpu``, ``gpu``, ``accelerator`` or ``other``."""
    types = load_pyopencl().device_type
    for name in ("CPU", "GPU", "ACCELERATOR"):
        if device.type & getattr(types, name):
            return name.lower()
    return "other"


def versions(device: Any) -> dict[str, str]:
    """For ``doctor``."""
    return {
        "pyopencl": load_pyopencl().VERSION_TEXT,
        "opencl": _version(device),
        "driver": device.driver_version.strip(),
    }


def details(device: Any) -> dict[str, str]:
    """For ``doctor``."""
    platform = f"{device.platform.name.strip()} ({device.platform.version.strip()})"
    return {"device": device.name.strip(), "type": kind(device), "platform": platform}
