"""The tiny engine lies outside the package: the repository's root goes on the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the model is small: threads only cost
sys.path.insert(0, str(Path(__file__).parents[2]))
