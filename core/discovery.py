"""Which backends are installed, and by whom; nothing is imported to find out (rules B1, B2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any, NamedTuple

from stevedore import NamedExtensionManager

from slotline.core.errors import ConfigError, nearest

GROUP = "slotline.backends"
OWN = "slotline"
AUTO = "auto"
RESERVED = frozenset({"cpu", "cuda", "xpu", "sim", AUTO})
"""Names that only the project's own distribution may use; ``AUTO`` is no backend's, since it means the choice (C)."""
MEANT = {
    "gpu": "; did you mean 'cuda'?",
    "nvidia": "; did you mean 'cuda'?",
    **{maker: f"; did you mean 'xpu' with vendor {maker!r} (SLOTLINE_VENDOR)?" for maker in ("kunlun", "intel")},
}
"""Hints for names that are tried and are far from the right ones; a plugin may still bring a backend so called."""
UNKNOWN = "unknown"
"""The distribution of an entry point that lies in no readable metadata."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A backend's entry point, with the distribution that brings it. ``name`` is in lower case (C)."""

    name: str
    target: str
    distribution: str
    version: str
    entry_point: EntryPoint | None = None
    problem: str = ""
    """Why it may not be loaded."""
    allowed: bool = True
    alone: bool = True
    """No other distribution has an entry point of the name."""

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    @property
    def package(self) -> str:
        return self.target.split(":")[0].split(".")[0].strip()

    @property
    def is_own(self) -> bool:
        return self.distribution == OWN


class Discovery(NamedTuple):
    """``plugins``: one for each name, ascending. ``refused``: what claims a name of ours, or cannot be read."""

    plugins: dict[str, Plugin]
    refused: list[Plugin]


def discover(allowed: Iterable[str] | None = None) -> Discovery:
    """Every backend that is installed. ``allowed``: names that may be loaded beside the project's own; None: all."""
    found: dict[str, list[Plugin]] = {}
    out = Discovery({}, [])
    for plugin in _installed():
        if plugin.problem:
            out.refused.append(plugin)
        else:
            found.setdefault(plugin.name, []).append(plugin)
    for name in sorted(found):
        candidates = sorted(found[name], key=lambda p: (not p.is_own, p.distribution, p.target))
        alone = len(candidates) == 1
        if name == AUTO:
            out.refused.extend(replace(p, problem=_RESERVED) for p in candidates)
        elif name in RESERVED and candidates[0].is_own:
            out.refused.extend(replace(p, problem=_RESERVED) for p in candidates[1:])
            out.plugins[name] = replace(candidates[0], alone=alone)
        else:
            out.plugins[name] = replace(_judged(candidates, allowed), alone=alone)
    out.refused.sort(key=lambda p: (p.name, p.distribution))
    return out


_RESERVED = "the name is reserved for slotline itself; rename the backend or uninstall its distribution"


def _installed() -> Iterator[Plugin]:
    """The entry points of one distribution after the other, so that broken metadata takes nothing else down (B7)."""
    seen: set[str] = set()
    for distribution in distributions():
        if GROUP not in _entry_points_text(distribution):
            continue
        name, version = _identity(distribution)
        if name in seen and name != UNKNOWN:
            continue  # the same distribution again, further down the path (C81)
        seen.add(name)
        try:
            points = {point.value: point for point in distribution.entry_points.select(group=GROUP)}
        except Exception as error:  # noqa: BLE001  (whatever is wrong in a foreign file, it becomes a line in the list)
            problem = f"its entry points cannot be read: {type(error).__name__}: {error}"
            yield Plugin(name, "", name, version, problem=problem)
            continue
        for target, point in points.items():
            yield Plugin(point.name.lower(), target, name, version, point)


def _entry_points_text(distribution: Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, ValueError):
        return ""


def _identity(distribution: Distribution) -> tuple[str, str]:
    """Name in its canonical form, and version, as the metadata says; ``unknown`` where there is none."""
    try:
        metadata = distribution.metadata
        name, version = (str(metadata[key]) if key in metadata else "" for key in ("Name", "Version"))
    except Exception:  # noqa: BLE001  (a missing or unreadable file; which error that is depends on Python's version)
        name, version = "", ""
    return re.sub(r"[-_.]+", "-", name or UNKNOWN).lower(), version


def _judged(plugins: list[Plugin], allowed: Iterable[str] | None) -> Plugin:
    """The one plugin of a name, with what is wrong with it; the order of sys.path does not matter."""
    first = plugins[0]
    name = first.name
    if len(plugins) > 1:
        origins = sorted({p.origin for p in plugins})
        if len(origins) == 1:
            targets = " and ".join(p.target for p in plugins)
            return replace(first, problem=f"the name stands for {targets}; its distribution must choose one")
        bring = f"{len(origins)} distributions bring a backend {name!r}: {' and '.join(origins)}"
        return replace(first, problem=f"{bring}; uninstall all but one")
    if name in RESERVED and not first.is_own:
        return replace(first, problem=_RESERVED)
    if allowed is not None and not first.is_own and name not in set(allowed):
        hint = f"not in allowed_plugins; add {name!r} to SLOTLINE_ALLOWED_PLUGINS to use it"
        return replace(first, problem=hint, allowed=False)
    return first


def require_known(names: Iterable[str], plugins: dict[str, Plugin], where: str) -> None:
    """``ConfigError`` naming the names that no distribution brings, and those that exist."""
    unknown = [n for n in names if n not in plugins]
    if unknown:
        hint = MEANT.get(unknown[0]) or nearest(unknown[0], plugins) or "."
        missing = ", ".join(repr(n) for n in unknown)
        raise ConfigError(f"{where}: unknown backend {missing}{hint} Installed: {', '.join(plugins)}, or 'auto'")


def load_target(plugin: Plugin) -> Any:
    """What the plugin's entry point names, imported through stevedore; the import's own errors pass through."""
    point = plugin.entry_point
    if point is None:
        raise ImportError(plugin.problem)
    failed: list[BaseException] = []
    if plugin.alone:  # stevedore imports every entry point of a name, a refused one too
        try:
            manager: Any = NamedExtensionManager(
                GROUP,
                [point.name],
                on_load_failure_callback=lambda _manager, _point, error: failed.append(error),
                on_missing_entrypoints_callback=lambda _names: None,
            )
        except Exception:  # noqa: BLE001  (stevedore reads all metadata at once; another distribution's may be broken)
            return point.load()
        if failed:
            raise failed[0]
        for extension in manager:
            if extension.entry_point_target == plugin.target:
                return extension.plugin
    # stevedore caches entry points by times of 128 s resolution, so it may miss a plugin that has just been installed.
    return point.load()
