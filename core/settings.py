"""Settings: arguments, then ``SLOTLINE_*``, then ``slotline.toml``, then defaults (rules C)."""

from __future__ import annotations

import math
import operator
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from slotline.core.errors import ConfigError, nearest

FILE = "slotline.toml"
PREFIX = "SLOTLINE_"
MAX_FILE_BYTES = 1 << 20
FOREIGN = ("SLOTLINE_HYPOTHESIS_PROFILE", "SLOTLINE_TEST_")
"""Variables of the project's own tests, which are no settings."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was set, whoever set it. ``backend``: names in the order of trial, empty: "auto"."""

    backend: tuple[str, ...] = ()
    framework: str | None = None
    vendor: str | None = None
    device: int = 0
    allowed_plugins: tuple[str, ...] | None = None
    """Plugins that may be imported beside the project's own; None: all."""
    staging_bytes: int = 64 << 20
    probe_timeout: float = 20.0
    """Seconds that a probe in a child process may take."""
    sources: dict[str, str] = {}
    """For error texts: where each value that was set stood."""

    def source(self, key: str) -> str:
        return self.sources.get(key, f"the default of {key}")


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
) -> Settings:
    """The settings in force. ``ConfigError`` for an unknown key or value, or a file that cannot be read."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = [
        (_from_file(Path(folder) / FILE), f"{FILE}: "),
        (_from_environment(os.environ if environ is None else environ), PREFIX),
        ({k: v for k, v in (arguments or {}).items() if v is not None}, "argument "),
    ]
    for layer, where in layers:
        for key, value in layer.items():
            name = f"{where}{key.upper() if where == PREFIX else key}"
            if key not in _READERS:
                known = [PREFIX + k.upper() for k in _READERS] if where == PREFIX else list(_READERS)
                got = PREFIX + key.upper() if where == PREFIX else key
                hint = nearest(got, known) or "."
                raise ConfigError(f"unknown setting {name!r}{hint} Known: {', '.join(known)}")
            values[key], sources[key] = _READERS[key](value, name), name
    return Settings(**values, sources=sources)


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and not name.startswith(FOREIGN)
    }


def _from_file(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise ConfigError(f"{path}: cannot be read: it is no file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: more than {MAX_FILE_BYTES} bytes; this is no settings file")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8") from error
    except (ValueError, RecursionError) as error:  # beside tomllib's own: endless digits, endless brackets
        raise ConfigError(f"{path}: {error}") from error


def _names(value: Any, where: str) -> tuple[str, ...]:
    """A list of names, or text with commas; spaces, case, doubles and empty items do not matter."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) for i in items):
        raise ConfigError(f"{where} is {value!r}, allowed: names with commas between, or a list of them")
    return tuple(dict.fromkeys(name for item in items if (name := item.strip().lower())))


def _backends(value: Any, where: str) -> tuple[str, ...]:
    names = _names(value, where)
    if "auto" in names and len(names) > 1:
        raise ConfigError(f"{where} is {value!r}: 'auto' stands alone; allowed: auto, or names with commas between")
    return () if names == ("auto",) else names


def _word(*allowed: str) -> Callable[[Any, str], str | None]:
    def read(value: Any, where: str) -> str | None:
        word = value.strip().lower() if isinstance(value, str) else value
        if word == "":
            return None
        if word not in allowed:
            hint = nearest(word, allowed) if isinstance(word, str) else ""
            raise ConfigError(f"{where} is {_short(value)}, allowed: {', '.join(allowed)}{hint}")
        return str(word)

    return read


def _number(kind: type[int] | type[float], lowest: float, why: str) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> Any:
        text = value.strip() if isinstance(value, str) else value
        if kind is int and hasattr(text, "__index__") and not isinstance(text, bool):
            text = operator.index(text)  # NumPy's whole numbers too
        try:
            if isinstance(text, bool) or (isinstance(text, str) and not re.fullmatch(r"[-+]?[0-9.eE+-]+", text)):
                raise msgspec.ValidationError
            number: Any = msgspec.convert(text, kind, strict=not isinstance(text, str))
        except msgspec.ValidationError:
            raise ConfigError(f"{where} is {_short(value)}, allowed: {why}") from None
        if number < lowest or number > 2**53 or not math.isfinite(number) or (kind is float and number == 0):
            raise ConfigError(f"{where} is {_short(value)}, allowed: {why}")
        return number

    return read


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "backend": _backends,
    "framework": _word("numpy", "torch", "paddle"),
    "vendor": _word("kunlun", "intel"),
    "device": _number(int, 0, "a whole number of at least 0"),
    "allowed_plugins": _names,
    "staging_bytes": _number(int, 4096, "a whole number of at least 4096"),
    "probe_timeout": _number(float, 0, "a number of seconds above 0"),
}
