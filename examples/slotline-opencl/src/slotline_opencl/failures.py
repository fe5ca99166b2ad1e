"""OpenCL's errors as slotline's (rule W9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl

from slotline.device import DeviceError

NAMES = {
    value: f"CL_{name}" for name, value in vars(cl.status_code).items() if name.isupper() and isinstance(value, int)
}
"""The standard's names by number; a code that a vendor made up keeps its number only."""


def failed(operation: str, code: int | None, detail: str = "") -> DeviceError:
    """The error of a call that gave ``code``; None: the call was not made."""
    return DeviceError("opencl", operation, code, None if code is None else NAMES.get(code), detail)


@contextmanager
def native(operation: str, detail: str = "") -> Iterator[None]:
    """Inside, an error of OpenCL is raised as ``DeviceError`` with its number and its name."""
    try:
        yield
    except cl.Error as error:
        # pyopencl names some calls by its own words ("create_buffer"); those of the standard say more.
        called = error.routine if error.routine.startswith("cl") else operation
        raise failed(called, error.code, detail) from error
