"""Holds ``slotline.compat.cuda`` against the real wheels of CUDA's bindings, each in an environment of its own.

    python tests/shims/check_wheels.py [--only oldest,newest]

Needs no driver; what it looks at stands in ``README.md`` here. One line for each version; exit status 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Wheel(NamedTuple):
    """A requirement, the parts' folder that must be found, and which layouts it has."""

    requirement: str
    new: bool


WHEELS = {
    "oldest": Wheel("cuda-python==11.8.3", new=False),
    "11.8": Wheel("cuda-python==11.8.7", new=True),
    "12.2": Wheel("cuda-python==12.2.0", new=False),
    "12.6.0": Wheel("cuda-python==12.6.0", new=False),
    "12.6.2": Wheel("cuda-python==12.6.2.post1", new=True),
    "12.9 of cuda-python": Wheel("cuda-python==12.9.*", new=True),
    "12.9": Wheel("cuda-bindings==12.9.*", new=True),
    "13.0": Wheel("cuda-bindings==13.0.*", new=True),
    "newest": Wheel("cuda-bindings", new=True),
}

CHECK = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("error")  # X1: nothing warns
from slotline.backends.cuda.runtime import CudaRuntime
from slotline.compat import cuda
from slotline.core.errors import DeviceError
from slotline.core.runtime import Copy
runtime, driver, nvrtc = cuda.runtime(), cuda.driver(), cuda.nvrtc()
names = [m.__name__ for m in (runtime, driver, nvrtc)]

def told(function, *arguments):
    try:
        function(*arguments)
        return "a driver"
    except cuda.NoDriver:
        return "no driver"
    except (DeviceError, ImportError) as error:
        return str(error)

asked = [(runtime.cudaGetDeviceCount,), (runtime.cudaMalloc, 64), (driver.cuInit, 0), (driver.cuInit, 0)]
said = [told(cuda.call, *a) for a in asked]

# Without a driver a call looks at its arguments, then fails: so no handle need be real.
class Bindings:  # one device, which is the current one
    cudaGetDeviceCount = staticmethod(lambda: (0, 1))
    cudaGetDevice = staticmethod(lambda: (0, 0))
    def __getattr__(self, name):
        return getattr(runtime, name)

arguments = {
    "create_stream": (), "destroy_stream": (7,), "is_capturing": (0,), "synchronize": (), "create_event": (),
    "destroy_event": (7,), "record": (7, 0), "wait": (0, 7), "is_done": (7,), "sync_event": (7,),
    "allocate": (64,), "free": (1 << 40,), "allocate_host": (64,), "free_host": (1 << 40,),
    "copy": (1 << 40, 1 << 41, 8, Copy.HOST_TO_DEVICE, 0),
    "copy_2d": (1 << 40, 16, 1 << 41, 16, 8, 2, Copy.DEVICE_TO_HOST, 0),
}
class Driver:
    CUDA_VERSION = driver.CUDA_VERSION
    cuInit = staticmethod(lambda flags: (0,))
    cuDeviceGet = staticmethod(lambda index: (0, 0))
    cuCtxCreate = staticmethod(driver.cuCtxCreate)

if said[0] == "no driver":
    cuda.driver = Driver
    said.append(told(cuda.create_context, 0))
    cuda.runtime = Bindings
    device = CudaRuntime(0, lambda: 0)
    said += [told(getattr(device, name), *a) for name, a in arguments.items()]
calls = "cudaMemcpyAsync cudaMemcpy2DAsync cudaHostAlloc cudaFreeHost cudaMalloc cudaFree cudaEventCreateWithFlags "
calls += "cudaEventRecord cudaEventQuery cudaEventSynchronize cudaEventDestroy cudaStreamCreateWithFlags "
calls += "cudaStreamWaitEvent cudaStreamDestroy cudaStreamIsCapturing cudaDeviceSynchronize cudaSetDevice "
calls += "cudaGetDevice cudaGetDeviceProperties cudaDriverGetVersion cudaRuntimeGetVersion"
print(json.dumps({
    "names": names,
    "said": said,
    "version": cuda.version(),
    "missing": [c for c in calls.split() if not hasattr(runtime, c)],
    "errors": [
        told(cuda.call, lambda: (kind(2), None)) for kind in (runtime.cudaError_t, driver.CUresult, nvrtc.nvrtcResult)
    ] + [
        told(cuda.call, lambda: kind(77777)) for kind in (runtime.cudaError_t, driver.CUresult, nvrtc.nvrtcResult)
    ],
}))
"""
ERRORS = ["2 (cudaErrorMemoryAllocation)", "2 (CUDA_ERROR_OUT_OF_MEMORY)", "2 (NVRTC_ERROR_PROGRAM_CREATION_FAILURE)"]
ERRORS += ["77777 (unknown code): newer than the bindings"] * 3


def problem(wheel: Wheel, folder: Path) -> tuple[str, str]:
    """What was found, and what is wrong with it (empty: nothing)."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    needed = [wheel.requirement, "numpy", "stevedore", "msgspec", "array-api-compat"]
    if "==11" in wheel.requirement or wheel.requirement.endswith(("12.2.0", "12.6.0")):
        needed.append("setuptools<80")  # these import pkg_resources
    done = subprocess.run([python, "-m", "pip", "install", "-q", *needed], capture_output=True, text=True, check=False)
    if done.returncode:
        return "", f"cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    done = subprocess.run(
        [python, "-c", CHECK, str(ROOT / "src")], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode:
        return "", done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout)
    asked = f"{len(found['said'])} calls: {', '.join(sorted(set(found['said'])))}"
    text = f"{found['version']}: {found['names'][0]}; {asked}"
    if [".bindings." in name for name in found["names"]] != [wheel.new] * 3:
        return text, f"expected the {'new' if wheel.new else 'old'} path, got {found['names']}"
    if found["missing"]:
        return text, f"lacks {found['missing']}"
    for error, wanted in zip(found["errors"], ERRORS, strict=True):
        if not error.endswith(wanted):
            return text, f"an error that should end in {wanted} is told as {error}"
    if found["version"] == "unknown":
        return text, "no version"
    if not set(found["said"]) <= {"no driver", "a driver"}:
        return text, f"a missing driver is told as {found['said']}"
    return text, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"names with commas between: {', '.join(WHEELS)}")
    only = parser.parse_args().only
    names = list(WHEELS) if only is None else only.split(",")
    unknown = [name for name in names if name not in WHEELS]
    if unknown:
        parser.error(f"unknown {', '.join(unknown)}; known: {', '.join(WHEELS)}")
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            text, wrong = problem(WHEELS[name], Path(folder))
        print(
            f"{'FAILED' if wrong else 'ok':6} {name:20} {WHEELS[name].requirement:28} {text} {wrong}".rstrip(),
            flush=True,
        )
        failed += bool(wrong)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
