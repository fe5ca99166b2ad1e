"""Device nodes: whether the system has a device at all, asked before a framework is imported, which takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path

from slotline.core.errors import BackendUnavailable


def require_node(device: str, *nodes: str, lacking: str) -> None:
    """``BackendUnavailable`` if none of ``nodes`` is there. Other systems than Linux have no such nodes; nothing is
    asked there. ``lacking`` (may be empty): what else is missing, for the same error.
    """
    if sys.platform == "linux" and not any(Path(node).exists() for node in nodes):
        hint = "install the driver; in a container, pass the device in"
        missing = f"; {lacking}" if lacking else ""
        raise BackendUnavailable(f"no sign of {device}: neither {' nor '.join(nodes)} is there; {hint}{missing}")
