"""Version shims of CUDA's bindings (rules X1 to X4), with stub packages for each layout that was ever published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slotline.core.errors import DeviceError

RUNTIME = """
import enum
class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
def cudaMemcpyAsync(*a): return (cudaError_t(0),)
def cudaGetDeviceCount(): return (cudaError_t(0), 1)
def cudaMalloc(n): return (cudaError_t(2), None)
"""
DRIVER = """
CUDA_VERSION = {major}000
def cuLaunchKernel(*a): return (0,)
def cuInit(flags): return (0,)
def cuDeviceGet(index): return (0, index)
def cuCtxCreate(*a):
    assert len(a) == {arguments}, a
    return (0, "context")
"""
NVRTC = "def nvrtcCompileProgram(*a): return (0,)\n"
WARNS = "import warnings; warnings.warn('cuda.cudart is deprecated', FutureWarning, stacklevel=2)\n"

# version: (old layout, new layout, the old one warns, distributions)
LAYOUTS: dict[str, tuple[bool, bool, bool, tuple[str, ...]]] = {
    "11.8.0": (True, False, False, ("cuda-python",)),
    "11.8.4": (True, True, False, ("cuda-python", "cuda-bindings")),
    "12.2.0": (True, False, False, ("cuda-python",)),
    "12.6.0": (True, False, False, ("cuda-python",)),
    "12.6.1": (True, True, True, ("cuda-python",)),
    "12.9.0": (True, True, True, ("cuda-python", "cuda-bindings")),
    "13.0.0": (False, True, False, ("cuda-bindings",)),
    "13.5.0": (False, True, False, ("cuda-bindings",)),
}


def stub(folder: Path, version: str) -> Path:
    """A fake installation of the bindings of ``version``."""
    old, new, warns, distributions = LAYOUTS[version]
    major = int(version.split(".")[0])
    parts = {"runtime": RUNTIME, "nvrtc": NVRTC, "driver": DRIVER.format(major=major, arguments=3 if major > 12 else 2)}
    for paths, warning in (
        ({"runtime": "cudart", "driver": "cuda", "nvrtc": "nvrtc"}, WARNS if warns else "") if old else ({}, ""),
        ({part: f"bindings/{part}" for part in parts}, "") if new else ({}, ""),
    ):
        for part, path in paths.items():
            file = folder / "cuda" / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / "__init__.py").touch()  # so that no installed bindings show through
            (folder / "cuda" / "__init__.py").touch()
            file.write_text(warning + parts[part])
    for name in distributions:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def ask(path: Path | None, code: str, *flags: str, cwd: Path | None = None) -> Any:
    """What ``code`` prints as JSON in a process that has ``path`` in front."""
    script = "import json\nfrom slotline.compat import cuda\n" + textwrap.dedent(code)
    env = {**os.environ, "PYTHONPATH": str(path or "")}
    done = subprocess.run(
        [sys.executable, *flags, "-c", script], capture_output=True, text=True, env=env, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", LAYOUTS)
def test_c62_c71_every_layout_gives_the_same_names(version: str, tmp_path: Path) -> None:  # X1
    found = ask(
        stub(tmp_path, version),
        """
        modules = [cuda.runtime(), cuda.driver(), cuda.nvrtc()]
        names = ("cudaMemcpyAsync", "cuLaunchKernel", "nvrtcCompileProgram")
        print(json.dumps({
            "calls": [callable(getattr(m, n)) for m, n in zip(modules, names)],
            "count": cuda.call(modules[0].cudaGetDeviceCount),
            "context": cuda.create_context(0),
            "new": [".bindings." in m.__name__ for m in modules],
            "version": cuda.version(),
        }))
        """,
        "-W",
        "error",  # X1: the old path warns where the new one exists, and is not touched there
    )
    new, distributions = LAYOUTS[version][1], LAYOUTS[version][3]
    if "cuda-bindings" not in distributions and find_spec("cuda") is not None:
        found["version"] = version  # the metadata of bindings that are really installed shows through
    assert found == {
        "calls": [True] * 3, "count": 1, "context": "context", "new": [new] * 3, "version": version,
    }  # fmt: skip


def test_c62_a_half_installed_new_layout_falls_back_to_the_old(tmp_path: Path) -> None:  # X2: an AttributeError
    folder = stub(tmp_path, "12.9.0")
    (folder / "cuda" / "bindings" / "runtime.py").write_text("# nothing is in it\n")
    assert ask(folder, "print(json.dumps(cuda.runtime().__name__))") == "cuda.cudart"


def test_c63_c69_without_bindings_one_error_names_both_paths(tmp_path: Path) -> None:  # X2
    script = """
    from slotline.core.errors import BackendUnavailable
    import sys
    sys.modules["cuda"] = None  # as if nothing were installed
    try:
        cuda.runtime()
    except BackendUnavailable as error:
        print(json.dumps([str(error), isinstance(error, ImportError)]))
    """
    text, is_import_error = ask(None, script)
    assert is_import_error
    for part in ("cuda.bindings.runtime", "cuda.cudart", "cuda-bindings 12.8 or newer", "slotline[cuda]"):
        assert part in text, text


TOLD = """
from slotline.core.errors import BackendUnavailable
try:
    cuda.runtime()
except BackendUnavailable as error:
    print(json.dumps([str(error), type(error.__cause__).__name__]))
"""


def test_x2_bindings_that_are_broken_say_what_broke(tmp_path: Path) -> None:
    folder = stub(tmp_path, "13.0.0")
    (folder / "cuda" / "bindings" / "runtime.py").write_text("import libcudart_that_is_missing\n")
    text, cause = ask(folder, TOLD)
    assert "installed but broken: No module named 'libcudart_that_is_missing'" in text
    assert cause == "ModuleNotFoundError"


@pytest.mark.parametrize("form", ["file", "folder"])
def test_x2_what_hides_the_bindings_is_named(form: str, tmp_path: Path) -> None:
    stub(tmp_path / "site", "13.0.0")
    here = tmp_path / "here"
    (here / "cuda").mkdir(parents=True)
    hiding = here / "cuda.py" if form == "file" else here / "cuda" / "__init__.py"
    hiding.write_text("")
    path = f"{here}{os.pathsep}{tmp_path / 'site'}"
    text, _ = ask(Path(path), TOLD)
    assert f"hidden by {hiding if form == 'file' else here / 'cuda'}" in text
    assert "rename it" in text


FOREIGN = {
    "C++ sources": "bindings.cpp",
    "a folder with a module's name": "bindings.py/readme.txt",
    "a folder without modules": "bindings/kernels.cu",
}


@pytest.mark.parametrize("content", FOREIGN)
def test_x2_a_folder_hides_the_bindings_whatever_its_files_are_called(content: str, tmp_path: Path) -> None:
    stub(tmp_path / "site", "13.0.0")
    hiding = tmp_path / "here" / "cuda"
    file = hiding / FOREIGN[content]
    file.parent.mkdir(parents=True)
    file.touch()
    (hiding / "__init__.py").touch()
    text, _ = ask(Path(f"{hiding.parent}{os.pathsep}{tmp_path / 'site'}"), TOLD)
    assert f"hidden by {hiding}, which is imported as 'cuda'; rename it" in text


RAISES = {
    "SyntaxError": "def (",
    "RuntimeError": "raise RuntimeError('no GPU here')",
    "OSError": "raise OSError('libcudart.so.13: cannot open shared object file')",
    "SystemExit": "raise SystemExit(1)",
}


@pytest.mark.parametrize("kind", RAISES)
@pytest.mark.parametrize("form", ["cuda.py", "cuda/__init__.py"])
def test_x2_what_hides_the_bindings_may_raise_anything(form: str, kind: str, tmp_path: Path) -> None:
    stub(tmp_path / "site", "13.0.0")
    hiding = tmp_path / "here" / form
    hiding.parent.mkdir(parents=True)
    hiding.write_text(RAISES[kind])
    text, cause = ask(Path(f"{tmp_path / 'here'}{os.pathsep}{tmp_path / 'site'}"), TOLD)
    named = hiding if form == "cuda.py" else hiding.parent
    assert f"hidden by {named}, which is imported as 'cuda' and raises {kind}; rename it" in text
    assert cause == kind


@pytest.mark.parametrize("kind", RAISES)
@pytest.mark.parametrize("path", ["bindings/runtime.py", "bindings/__init__.py", "cudart.py"])
def test_x2_broken_bindings_may_raise_anything_and_the_file_is_named(path: str, kind: str, tmp_path: Path) -> None:
    file = stub(tmp_path, "12.6.0" if path == "cudart.py" else "13.0.0") / "cuda" / path
    file.write_text(RAISES[kind])
    text, cause = ask(tmp_path, TOLD)
    assert "installed but broken" in text
    assert f"({kind} in {file})" in text
    assert cause == kind


def test_c65_results_are_unpacked(tmp_path: Path) -> None:  # X3
    found = ask(
        stub(tmp_path, "13.0.0"),
        """
        from slotline.core.errors import DeviceError
        out = [cuda.check((0,)), cuda.check((0, 5)), cuda.check((0, 5, 6))]
        for result in ((2,), (cuda.runtime().cudaError_t(2), None), (77777,)):
            try:
                cuda.check(result, "cudaMalloc")
            except DeviceError as error:
                out.append([error.operation, error.code, error.code_name])
        print(json.dumps(out))
        """,
    )
    allocation = ["cudaMalloc", 2, "cudaErrorMemoryAllocation"]
    assert found == [None, 5, [5, 6], allocation, allocation, ["cudaMalloc", 77777, None]]


NO_DRIVER = {
    "first call of old wheels": "raise RuntimeError('Failed to dlopen libcuda.so.1')",
    "second call of old wheels": "raise RuntimeError('Function cudaGetDeviceCount not found')",
    "a subclass": "class NotFound(RuntimeError): pass\n    raise NotFound('cuda is a driver library')",
    "a status": "return (cudaError_t(35), None)",
}


@pytest.mark.parametrize("form", NO_DRIVER)
def test_x3_every_way_to_say_no_driver(form: str, tmp_path: Path) -> None:
    folder = stub(tmp_path, "12.9.0")
    file = folder / "cuda" / "bindings" / "runtime.py"
    file.write_text(f"{RUNTIME}\ndef cudaGetDeviceCount():\n    {NO_DRIVER[form]}\n")
    script = """
    def none(name):
        raise OSError(name + ": cannot open shared object file")

    cuda.ctypes.CDLL = none  # also on a machine that has a driver
    try:
        cuda.call(cuda.runtime().cudaGetDeviceCount)
    except cuda.NoDriver as error:
        print(json.dumps([str(error), isinstance(error, ImportError)]))
    """
    text, is_import_error = ask(folder, script)
    assert text.startswith("no CUDA driver: cudaGetDeviceCount")
    assert is_import_error


def test_x4_a_version_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    info = tmp_path / "cuda_bindings-13.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(b"Name: cuda-bindings\n")
    assert ask(tmp_path, "print(json.dumps(cuda.version()))") == "unknown"


def test_w9_a_device_error_says_what_and_where() -> None:
    error = DeviceError("cuda", "cudaMalloc", 2, "cudaErrorMemoryAllocation")
    assert str(error) == "cuda: cudaMalloc failed with 2 (cudaErrorMemoryAllocation)"
    assert str(DeviceError("cuda", "cudaMalloc", 4711, None)) == "cuda: cudaMalloc failed with 4711 (unknown code)"
