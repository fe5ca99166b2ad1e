"""The CUDA bindings, whatever is installed (rules X1 to X4).

Up to 11.8.3, and in 12.0 to 12.6.0, only ``cuda.cudart``, ``cuda.cuda`` and ``cuda.nvrtc`` exist; 11.8.4 and 12.6.1
brought ``cuda.bindings.*`` beside them; from 13.0 only these are left. The new path is tried first, so the old one,
which warns where both exist, is never touched there. What imports decides, not version text.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as metadata_version
from pathlib import Path
from types import ModuleType
from typing import Any

from slotline.core.errors import BackendUnavailable, DeviceError

PACKAGES = ("cuda-bindings", "cuda-python")
_PATHS = {  # new, old, and a name that it must have
    "runtime": ("cuda.bindings.runtime", "cuda.cudart", "cudaMemcpyAsync"),
    "driver": ("cuda.bindings.driver", "cuda.cuda", "cuLaunchKernel"),
    "nvrtc": ("cuda.bindings.nvrtc", "cuda.nvrtc", "nvrtcCompileProgram"),
}
_NO_DRIVER = {"cudaErrorInsufficientDriver", "cudaErrorStubLibrary", "CUDA_ERROR_STUB_LIBRARY"}
"""Statuses that say so; ``cudaGetDeviceCount`` gives the first, 35, from 12.9 on."""
_UNKNOWN = re.compile(r"(\d+) is not a valid (cudaError_t|CUresult|nvrtcResult)")
_DOCS = "install NVIDIA's driver, or choose another backend"


class NoDriver(BackendUnavailable):
    """The bindings are there, the driver is not."""


def require_driver() -> None:
    """``NoDriver`` unless the driver's library can be loaded: a cheap question, before a framework is imported."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise NoDriver(f"no CUDA driver: {name} cannot be loaded ({error}); {_DOCS}") from error


def runtime() -> ModuleType:
    """The runtime's bindings (``cudaMalloc`` and so on), imported now.

    ``BackendUnavailable`` if there are none, if something hides them, or with what breaks at their import (X2).
    """
    return _find("runtime")


def driver() -> ModuleType:
    """The driver's bindings (``cuLaunchKernel`` and so on), imported now."""
    return _find("driver")


def nvrtc() -> ModuleType:
    """The run-time compiler's bindings, imported now. The compiler itself is a library of its own."""
    return _find("nvrtc")


def version() -> str:
    """The bindings' version as their metadata says; ``unknown`` where it says nothing. Decides nothing."""
    for package in PACKAGES:
        try:
            found = metadata_version(package)
        except PackageNotFoundError:
            continue
        except Exception:  # noqa: BLE001  (metadata of any kind of brokenness; a version is only ever shown)
            return "unknown"
        if found:
            return str(found)
    return "unknown"


def check(result: Any, operation: str = "a CUDA call") -> Any:
    """What a call gave, out of its tuple: nothing, one value, or a tuple of several.

    ``DeviceError`` with the operation, the number and its name for any status but 0; a number that has no name here
    keeps itself (W9).
    """
    status, *values = result if isinstance(result, tuple) else (result,)
    code = int(status)
    if code:
        raise DeviceError("cuda", operation, code, _name(status, code))
    return None if not values else values[0] if len(values) == 1 else tuple(values)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """``check(function(*arguments))``; ``NoDriver`` in every form in which the wheels say that there is none.

    ``BackendUnavailable`` if only the function is missing from the libraries that are there.
    """
    name = getattr(function, "__name__", str(function))
    try:
        return check(function(*arguments), name)
    except RuntimeError as error:
        raise _missing(name, error) from error
    except ValueError as error:  # all wheels turn a status into an enum, which fails for one that they do not know
        found = _UNKNOWN.match(str(error))
        if found is None:
            raise
        raise DeviceError("cuda", name, int(found[1]), None, "newer than the bindings") from error
    except DeviceError as error:
        if error.code_name in _NO_DRIVER:
            raise NoDriver(f"no CUDA driver: {name} gives {error.code} ({error.code_name}); {_DOCS}") from error
        raise


def _missing(name: str, error: RuntimeError) -> BackendUnavailable:
    """What a RuntimeError of the bindings means: a library or a function was not found.

    The text does not tell: without a driver the older wheels say at the second call that a function is missing.
    """
    if name.startswith("nvrtc"):
        wheels = "nvidia-cuda-nvrtc (for bindings of 12: nvidia-cuda-nvrtc-cu12)"
        return BackendUnavailable(f"no nvrtc library: {name}: {error}; pip install {wheels}")
    try:
        require_driver()
    except NoDriver:
        return NoDriver(f"no CUDA driver: {name}: {error}; {_DOCS}")
    return BackendUnavailable(f"the CUDA driver lacks {name}: {error}; install a newer driver, or older bindings")


def create_context(device: int) -> Any:
    """A context of the driver for ``device``; from 13 on ``cuCtxCreate`` takes one argument more, in front."""
    cuda = driver()
    call(cuda.cuInit, 0)
    found = call(cuda.cuDeviceGet, device)
    if _major(cuda) >= 13:
        return call(cuda.cuCtxCreate, None, 0, found)
    return call(cuda.cuCtxCreate, 0, found)


def _major(module: ModuleType) -> int:
    """The major version that bindings were made for: their own number, no text."""
    return int(getattr(module, "CUDA_VERSION", 0)) // 1000


def _name(status: Any, code: int) -> str | None:
    name = getattr(status, "name", None)
    if isinstance(name, str):
        return name
    try:
        return str(runtime().cudaError_t(code).name)
    except (BackendUnavailable, AttributeError, ValueError):
        return None


def _find(part: str) -> ModuleType:
    new, old, needed = _PATHS[part]
    failures: list[ImportError | AttributeError] = []
    for path in (new, old):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = importlib.import_module(path)
            getattr(found, needed)
            return found
        except (ImportError, AttributeError) as error:
            failures.append(error)
        except (Exception, SystemExit) as error:  # a foreign file may raise anything, a script may even end
            raise _broken(error, path) from error
    broken = [(e, path) for e, path in zip(failures, (new, old), strict=True) if not _is_absent(e)]
    if broken or _hidden_by():
        first, path = broken[0] if broken else (failures[0], new)
        raise _broken(first, path) from first
    raise BackendUnavailable(
        f"no CUDA bindings: neither {new} nor {old} can be imported; "
        "pip install 'slotline[cuda]' (cuda-bindings 12.8 or newer; cuda-python from 11.8 on serves too)"
    ) from failures[0]


def _is_absent(error: ImportError | AttributeError) -> bool:
    """The path is not there at all, instead of failing while it is imported."""
    paths = {p for new, old, _ in _PATHS.values() for p in (new, old)} | {"cuda", "cuda.bindings"}
    return isinstance(error, ModuleNotFoundError) and error.name in paths


def _broken(error: BaseException, path: str) -> BackendUnavailable:
    """What is there as ``cuda`` and is not what is needed, with the file that is at fault."""
    hidden = _hidden_by()
    if hidden:
        raised = "" if isinstance(error, (ImportError, AttributeError)) else f" and raises {type(error).__name__}"
        return BackendUnavailable(
            f"the CUDA bindings are hidden by {hidden}, which is imported as 'cuda'{raised}; rename it"
        )
    return BackendUnavailable(
        f"the CUDA bindings are installed but broken: {error} ({type(error).__name__} in "
        f"{_file_of(error, path)}); install them again"
    )


def _file_of(error: BaseException, path: str) -> str:
    """The first file of somebody else's that an import ran; a syntax error runs none and names its own."""
    ours = (__file__, importlib.__file__)
    names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    names = [name for name in names if name not in ours and not name.startswith("<frozen ")]
    told = error.filename if isinstance(error, SyntaxError) else getattr(sys.modules.get(path), "__file__", None)
    return (names or [told or path])[0]


def _hidden_by() -> str | None:
    """A file or folder of somebody's that is imported as ``cuda`` in place of the bindings.

    A folder without ``__init__.py`` hides nothing: Python looks further for more of it. One that has any of the
    bindings' modules, as Python itself would find them, is the bindings'.
    """
    try:
        spec = importlib.util.find_spec("cuda")
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None:
        return None
    if spec.submodule_search_locations is None:
        return spec.origin
    paths = [path.partition(".")[2] for new, old, _ in _PATHS.values() for path in (new, old)]
    holds = any(_lies_in(spec.submodule_search_locations, path) for path in paths)
    return None if holds else str(Path(spec.origin).parent)


def _lies_in(folders: Iterable[str], path: str) -> bool:
    """Whether Python would find the module ``path`` in one of ``folders``; nothing is imported."""
    head, _, rest = path.partition(".")
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        found = None if finder is None else finder.find_spec(head)
        if found is None:
            continue
        if _lies_in(found.submodule_search_locations or (), rest) if rest else found.loader is not None:
            return True
    return False
