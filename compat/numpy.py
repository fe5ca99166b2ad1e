"""NumPy 1.26 and 2.x, and the bfloat16 that it lacks."""

from __future__ import annotations

import numpy as np


def version() -> str:
    """The installed NumPy's version."""
    return np.__version__


def enable_bfloat16() -> bool:
    """Import ``ml_dtypes``, which teaches NumPy the dtype; False if it is not installed."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True
