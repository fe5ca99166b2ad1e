"""What a device plugin builds on: the two ways to write a backend, and the nouns of both.

``Backend`` is for a device without streams (five hooks), ``StreamedBackend`` for one with streams (a ``Runtime``, its
``DeviceTensors``, an ``Applier``). See ``docs/write-a-backend.md``.
"""

from slotline.compat.numpy import enable_bfloat16
from slotline.core.applier import Applier
from slotline.core.backend import DONE, Abilities, Backend, Download, Event, Probe, TensorInfo
from slotline.core.device_tensors import DeviceTensors
from slotline.core.errors import BackendUnavailable, DeviceError, LayoutError, PacketError, SlotlineError
from slotline.core.field import DTYPES
from slotline.core.image import CELLS, Image, targets
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.runtime import Copy, Runtime
from slotline.core.staging import staging_kind
from slotline.core.stats import Stats
from slotline.core.streamed import StreamedBackend

enable_bfloat16()  # so that numpy_dtype knows it in a plugin too, where ml_dtypes is installed

__all__ = [
    "CELLS",
    "DONE",
    "DTYPES",
    "Abilities",
    "Applier",
    "Backend",
    "BackendUnavailable",
    "BufferLayout",
    "Copy",
    "DeviceError",
    "DeviceTensors",
    "Download",
    "Event",
    "Image",
    "LayoutError",
    "Packet",
    "PacketError",
    "Probe",
    "Runtime",
    "SlotlineError",
    "Stats",
    "StreamedBackend",
    "TensorInfo",
    "numpy_dtype",
    "staging_kind",
    "targets",
]
