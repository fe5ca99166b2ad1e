"""Parts: what a backend with streams is made of."""

from __future__ import annotations

from typing import NamedTuple

from slotline.core.applier import Applier
from slotline.core.device import Abilities
from slotline.core.device_tensors import DeviceTensors
from slotline.core.runtime import Runtime


class Parts(NamedTuple):
    """Everything that ``StreamedBackend.start`` takes, and what ``doctor`` says of it."""

    runtime: Runtime
    tensors: DeviceTensors
    applier: Applier
    abilities: Abilities
    details: dict[str, str]
