"""Which backends are installed, and by whom; nothing is imported to find out (rules B1, B2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from stevedore import NamedExtensionManager

from slotline.core.errors import ConfigError, nearest

GROUP = "slotline.backends"
OWN = "slotline"
RESERVED = frozenset({"cpu", "cuda", "xpu", "sim"})
"""Names that only the project's own distribution may use."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A backend's entry point, with the distribution that brings it. ``problem``: why it may not be loaded."""

    name: str
    target: str
    distribution: str
    version: str
    entry_point: EntryPoint
    problem: str = ""
    allowed: bool = True

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    @property
    def package(self) -> str:
        return self.target.split(":")[0].split(".")[0]

    @property
    def is_own(self) -> bool:
        return self.distribution == OWN


class Discovery(NamedTuple):
    """``plugins``: one for each name, ascending. ``refused``: those that claim a name of the project's own."""

    plugins: dict[str, Plugin]
    refused: list[Plugin]


def discover(allowed: Iterable[str] | None = None) -> Discovery:
    """Every backend that is installed. ``allowed``: names that may be loaded beside the project's own; None: all."""
    found: dict[str, dict[str, Plugin]] = {}
    for point in entry_points(group=GROUP):
        distribution = point.dist.metadata["Name"] if point.dist else "unknown"
        version = point.dist.version if point.dist else ""
        plugin = Plugin(point.name, point.value, _canonical(distribution), version, point)
        found.setdefault(point.name, {}).setdefault(plugin.distribution, plugin)  # seen twice counts once
    out = Discovery({}, [])
    for name in sorted(found):
        if name in RESERVED and OWN in found[name]:
            out.plugins[name] = found[name].pop(OWN)
            out.refused.extend(replace(found[name][d], problem=_RESERVED) for d in sorted(found[name]))
        else:
            out.plugins[name] = _judged(name, found[name], allowed)
    return out


_RESERVED = "the name is reserved for slotline itself; rename the backend or uninstall its distribution"


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _judged(name: str, plugins: dict[str, Plugin], allowed: Iterable[str] | None) -> Plugin:
    """The one plugin of a name, with what is wrong with it; the order of sys.path does not matter."""
    first = plugins[min(plugins)]
    if len(plugins) > 1:
        origins = " and ".join(sorted(p.origin for p in plugins.values()))
        return replace(first, problem=f"two distributions bring a backend {name!r}: {origins}; uninstall one")
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
        hint = nearest(unknown[0], plugins)
        missing = ", ".join(repr(n) for n in unknown)
        raise ConfigError(f"{where}: unknown backend {missing}{hint} Installed: {', '.join(plugins)}, or 'auto'")


def load_class(plugin: Plugin) -> Any:
    """What the plugin's entry point names, imported through stevedore; the import's own errors pass through."""

    def pass_on(_manager: Any, _point: Any, error: Any) -> None:
        raise error

    if any(p.value != plugin.target for p in entry_points(group=GROUP, name=plugin.name)):
        # stevedore would import every entry point of the name, a refused one too.
        return plugin.entry_point.load()
    manager = NamedExtensionManager(
        GROUP, [plugin.name], on_load_failure_callback=pass_on, on_missing_entrypoints_callback=lambda _names: None
    )
    for extension in manager:
        if extension.entry_point_target == plugin.target:
            return extension.plugin
    # stevedore caches entry points by times of 128 s resolution, so it may miss a plugin that has just been installed.
    return plugin.entry_point.load()
