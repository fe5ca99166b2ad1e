"""Device nodes: whether the system has a device at all, asked before a framework is imported, which takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from slotline.core.errors import BackendUnavailable


def require_node(device: str, nodes: Sequence[str], also: str = "") -> None:
    """``BackendUnavailable`` if none of ``nodes`` is there; ``also``: what else is missing, told in the same breath.

    Other systems than Linux have no such nodes; nothing is asked there.
    """
    if sys.platform == "linux" and not any(Path(node).exists() for node in nodes):
        hint = "install the driver; in a container, pass the device in"
        more = f"; {also}" if also else ""
        raise BackendUnavailable(f"no sign of {device}: neither {' nor '.join(nodes)} is there; {hint}{more}")
