"""A process that sees some of the distributions in ``tests/plugins``, and what it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PLUGINS = Path(__file__).parent / "plugins"

START = """
import json, os, sys
import numpy as np
import slotline as sl

config = sl.BatchConfig(max_num_seqs=4, max_model_len=16, max_chunk_tokens=8, block_size=4, num_blocks=64,
                        vocab_size=100, eos_token_ids=(2,), spec_method="ngram", num_draft_tokens=2)
layout = sl.target_layout(config).extend(
    sl.Field("seen", ("max_num_seqs",), "int32", -1, residency="mirrored", on={"prefill": sl.column("start")}))

def outcome(call):
    "What a call raises: class, words, and the classes of its cause."
    try:
        call()
    except Exception as error:
        cause = error.__cause__
        return [type(error).__name__, str(error), repr(cause)]
    return ["nothing", "", ""]

def prefill(name, slot=None):
    return sl.PrefillTask(sl.Request(name, [5, 6, 7]), 0, 3, [1], slot=slot)

def tell(value):
    print(json.dumps(value))
"""


def child(code: str, *plugins: str, **env: str) -> Any:
    """What ``code`` tells, in a process that sees ``plugins``."""
    path = os.pathsep.join(str(PLUGINS / p) for p in ("hostmem", *plugins))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTLINE_")}
    full = {**clean, "PYTHONPATH": path, "SLOTLINE_PROBE_TIMEOUT": "60", **env}
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
