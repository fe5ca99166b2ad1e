"""Finding a framework that is asked for by name: missing, broken and too old are three different errors."""

from __future__ import annotations

import importlib
import re
import warnings
from types import ModuleType

from slotline.core.errors import BackendUnavailable


def find(module: str, extra: str) -> ModuleType:
    """The module, imported now. ``BackendUnavailable`` naming the extra if it is missing, the cause chained."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a framework warns of at its import is not this project's
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise BackendUnavailable(f"{module} is installed but cannot be imported: {error}") from error
        raise BackendUnavailable(f"{module} is not installed; pip install 'slotline[{extra}]'") from error
    except ImportError as error:
        raise BackendUnavailable(f"{module} is installed but cannot be imported: {error}") from error


def versioned(module: ModuleType, extra: str, oldest: tuple[int, int]) -> ModuleType:
    """``module``; ``BackendUnavailable`` if its version is below ``oldest``."""
    text = str(getattr(module, "__version__", "unknown"))
    numbers = re.match(r"(\d+)\.(\d+)", text)
    # A build from source may say anything, 0.0.0 included; that is taken for new.
    if numbers and (0, 0) < tuple(int(n) for n in numbers.groups()) < oldest:
        needed = ".".join(map(str, oldest))
        raise BackendUnavailable(
            f"{module.__name__} {text} is too old, needed: {needed} or newer; pip install -U 'slotline[{extra}]'"
        )
    return module
