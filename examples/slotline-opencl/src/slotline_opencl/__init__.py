"""slotline's backend for OpenCL 1.2 devices."""

from slotline_opencl.backend import OpenclBackend

__all__ = ["OpenclBackend"]
