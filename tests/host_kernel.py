"""The CUDA C of the apply kernel, compiled for the host: its logic without a GPU."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

COMPILER = shutil.which("g++") or shutil.which("c++")
_SHIM = """
struct Index { unsigned x; };
static thread_local Index blockIdx, threadIdx, blockDim;
#define __global__
"""
_LOOP = """
extern "C" void run(const unsigned char* image, const long long* table, long long numbers_at, long long payload_at,
                    long long work_at, unsigned programs, unsigned threads) {
  blockDim.x = threads;
  for (unsigned b = 0; b < programs; ++b)
    for (unsigned t = 0; t < threads; ++t) {
      blockIdx.x = b; threadIdx.x = t;
      NAME(image, table, numbers_at, payload_at, work_at);
    }
}
"""


@functools.cache
def library() -> Any:
    """The kernel as a function of the host."""
    from slotline.backends.cuda.kernel import NAME, SOURCE

    assert COMPILER is not None
    folder = Path(tempfile.mkdtemp(prefix="slotline-kernel-"))
    (folder / "kernel.cpp").write_text(_SHIM + SOURCE + _LOOP.replace("NAME", NAME))
    command = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(folder / "kernel.so"), str(folder / "kernel.cpp")]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def apply(image: Any, table: Any, meta: Any, threads: int = 64) -> None:
    """As one launch: ``image`` uint8 [n] and ``table`` int64 [fields, 8] of the host."""
    wide = ctypes.c_longlong
    library().run(
        ctypes.c_void_p(image.ctypes.data), ctypes.c_void_p(table.ctypes.data), wide(meta.numbers_at),
        wide(meta.payload_at), wide(meta.work_at), ctypes.c_uint(meta.programs), ctypes.c_uint(threads),
    )  # fmt: skip
