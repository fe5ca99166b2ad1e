"""Settings: where they come from, what wins, and what is refused (rules C)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slotline as sl
from slotline.core.settings import MAX_FILE_BYTES, load_settings


def test_c_arguments_before_environment_before_file(tmp_path: Path) -> None:
    (tmp_path / "slotline.toml").write_text('backend = "one"\ndevice = 1\nstaging_bytes = 8192\n')
    environ = {"SLOTLINE_BACKEND": "two", "SLOTLINE_DEVICE": "2"}
    found = load_settings({"backend": "three", "device": None}, environ, tmp_path)
    assert (found.backend, found.device, found.staging_bytes) == (("three",), 2, 8192)
    assert found.source("backend") == "argument backend"
    assert found.source("device") == "SLOTLINE_DEVICE"
    assert found.source("staging_bytes") == "slotline.toml: staging_bytes"


def test_c_defaults(tmp_path: Path) -> None:
    found = load_settings({}, {}, tmp_path)
    assert (found.backend, found.framework, found.vendor, found.device) == ((), None, None, 0)
    assert (found.allowed_plugins, found.probe_timeout) == (None, 20.0)


@pytest.mark.parametrize(
    ("name", "value", "key", "expected"),
    [
        ("SLOTLINE_BACKEND", "", "backend", ()),
        ("SLOTLINE_BACKEND", "  ", "backend", ()),
        ("SLOTLINE_BACKEND", "AUTO", "backend", ()),
        ("SLOTLINE_BACKEND", " A ,, b,a", "backend", ("a", "b")),
        ("SLOTLINE_ALLOWED_PLUGINS", "", "allowed_plugins", ()),
        ("SLOTLINE_ALLOWED_PLUGINS", "X, y", "allowed_plugins", ("x", "y")),
        ("SLOTLINE_FRAMEWORK", " Torch ", "framework", "torch"),
        ("SLOTLINE_DEVICE", " 3 ", "device", 3),
        ("SLOTLINE_PROBE_TIMEOUT", "1.5", "probe_timeout", 1.5),
    ],
)
def test_c_values_of_the_environment(name: str, value: str, key: str, expected: Any, tmp_path: Path) -> None:
    assert getattr(load_settings({}, {name: value}, tmp_path), key) == expected


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SLOTLINE_BACKENDS", "cpu", "did you mean 'SLOTLINE_BACKEND'"),
        ("SLOTLINE_FRAMEWORK", "tourch", "did you mean 'torch'"),
        ("SLOTLINE_VENDOR", "amd", "kunlun, intel"),
        ("SLOTLINE_DEVICE", "-1", "at least 0"),
        ("SLOTLINE_DEVICE", "1.5", "whole number"),
        ("SLOTLINE_DEVICE", "", "whole number"),
        ("SLOTLINE_DEVICE", "1_0", "whole number"),
        ("SLOTLINE_STAGING_BYTES", "64", "at least 4096"),
        ("SLOTLINE_PROBE_TIMEOUT", "0", "above 0"),
        ("SLOTLINE_PROBE_TIMEOUT", "nan", "above 0"),
        ("SLOTLINE_PROBE_TIMEOUT", "1e999", "above 0"),
        ("SLOTLINE_BACKEND", "auto,cpu", "'auto' stands alone"),
    ],
)
def test_c_an_unknown_key_or_value_says_what_is_allowed(name: str, value: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(sl.ConfigError, match=name) as caught:
        load_settings({}, {name: value}, tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"backend = \n", "line 1"),
        (b"device = 1\nbakend = 'cpu'\n", "did you mean 'backend'"),
        (b"device = true\n", "whole number"),
        (b"device = 'x'\n", "whole number"),
        (b"backend = 3\n", "names with commas"),
        (b"allowed_plugins = [1]\n", "names with commas"),
        (b"a = 'x'\nb = '\xff'\n", "line 2: not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 2), "no settings file"),
        (b"[slotline]\nbackend = 'cpu'\n", "unknown setting 'slotline.toml: slotline'. Known: backend, "),
    ],
)
def test_c_a_bad_file_is_named_with_its_line(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "slotline.toml").write_bytes(content)
    with pytest.raises(sl.ConfigError, match=r"slotline\.toml") as caught:
        load_settings({}, {}, tmp_path)
    assert says in str(caught.value)


def test_c_a_folder_in_the_file_s_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "slotline.toml").mkdir()
    with pytest.raises(sl.ConfigError, match="cannot be read"):
        load_settings({}, {}, tmp_path)
