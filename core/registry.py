"""Choosing a backend: by name, from a list, or the best that is usable (rules B4 to B7, C)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slotline.core.backend import Backend
from slotline.core.discovery import Discovery, Plugin, discover, require_known
from slotline.core.errors import BackendUnavailable, ConfigError
from slotline.core.loading import Verdict, load_backend_class, probe_in_child
from slotline.core.settings import Settings, load_settings

FALLBACK = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """One backend as ``slotline doctor`` lists it."""

    name: str
    vendor: str | None
    usable: bool
    reason: str
    """Why it is not usable; empty if it is."""
    versions: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    distribution: str = ""
    """Name and version of what brings it."""
    broken: bool = False
    """It fails where it should not."""


def backend_names() -> list[str]:
    """The installed backends' names; imports none of them (B2)."""
    return list(discover().plugins)


def list_backends() -> list[BackendInfo]:
    """Every installed backend with its verdict, each probed in a process of its own with a time limit (B3).

    Raises ``ConfigError`` for settings that cannot be used; a backend never raises here.
    """
    settings = load_settings()
    found = discover(settings.allowed_plugins)
    return [_info(plugin, settings) for plugin in (*found.plugins.values(), *found.refused)]


def _info(plugin: Plugin, settings: Settings) -> BackendInfo:
    verdict = _judge(plugin, settings)
    return BackendInfo(
        name=plugin.name,
        vendor=verdict.vendor,
        usable=verdict.usable,
        reason="" if verdict.usable else verdict.reason,
        versions=verdict.versions,
        priority=verdict.priority,
        distribution=plugin.origin,
        broken=verdict.broken,
    )


def _judge(plugin: Plugin, settings: Settings) -> Verdict:
    if plugin.problem:
        return Verdict(usable=False, reason=plugin.problem, broken=plugin.allowed)
    framework = None if plugin.name == FALLBACK else settings.framework
    options = {"framework": framework, "vendor": settings.vendor, "device": settings.device}
    return probe_in_child(plugin, options, settings.probe_timeout)


def load_backend(
    name: str | None = None, *, framework: str | None = None, vendor: str | None = None, device: int | None = None
) -> Backend:
    """The backend ``name``, else the one that the settings name, else the best that is usable (C).

    ``name``: a name, names with commas between (the first usable), or ``"auto"``: the usable accelerator of the
    highest priority, else ``cpu``. A backend that is named is never replaced by another.

    Raises ``BackendUnavailable`` if what was asked for cannot be used, the cause chained; ``ConfigError`` for an
    unknown name or setting, or two accelerators of equal rank.
    """
    arguments = {"backend": name, "framework": framework, "vendor": vendor, "device": device}
    settings = load_settings(arguments)
    found = discover(settings.allowed_plugins)
    plugins = found.plugins
    require_known(settings.backend, plugins, settings.source("backend"))
    if not settings.backend:
        return _create(plugins[select_auto(found, settings, warn=True)], settings)
    failures: list[BackendUnavailable] = []
    for wanted in settings.backend:
        try:
            return _create(plugins[wanted], settings)
        except BackendUnavailable as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(str(f) for f in failures)
    raise BackendUnavailable(f"{settings.source('backend')}: none is usable: {reasons}") from failures[0]


def _create(plugin: Plugin, settings: Settings) -> Backend:
    """Probe in this process, then make the object (B3, B4)."""
    found = load_backend_class(plugin)
    options: dict[str, Any] = {"framework": settings.framework, "vendor": settings.vendor, "device": settings.device}
    try:
        verdict = found.ask(**options)
    except BackendUnavailable:
        raise
    except Exception as error:
        raise BackendUnavailable(
            f"backend {plugin.name!r} of {plugin.origin}: {type(error).__name__}: {error}"
        ) from error
    if not verdict.usable:
        raise BackendUnavailable(f"backend {plugin.name!r} of {plugin.origin} cannot be used: {verdict.reason}")
    return found(**options, staging_bytes=settings.staging_bytes)


def select_auto(found: Discovery, settings: Settings, *, warn: bool) -> str:
    """The name that "auto" takes (B5)."""
    candidates = {n: p for n, p in found.plugins.items() if n != FALLBACK}
    verdicts = {n: _judge(p, settings) for n, p in candidates.items()}
    usable = {n: v.priority for n, v in verdicts.items() if v.usable and v.priority is not None}
    broken = [f"{candidates[n].origin}: {v.reason}" for n, v in verdicts.items() if v.broken]
    broken += [f"{p.origin}: backend {p.name!r}: {p.problem}" for p in found.refused]
    if broken and warn:
        chosen = "" if usable else f"; using {FALLBACK}"
        warnings.warn(f"broken backend plugins: {'; '.join(broken)}{chosen}", RuntimeWarning, stacklevel=3)
    if not usable:
        return FALLBACK
    best = max(usable.values())
    first = sorted(n for n, p in usable.items() if p == best)
    if len(first) > 1:
        raise ConfigError(
            f"usable backends of equal priority {best}: {' and '.join(first)}; choose with SLOTLINE_BACKEND"
        )
    return first[0]


def selected_backend() -> str:
    """The name that ``load_backend()`` would take now; imports and probes as "auto" does, warns of nothing."""
    settings = load_settings()
    found = discover(settings.allowed_plugins)
    require_known(settings.backend, found.plugins, settings.source("backend"))
    if not settings.backend:
        return select_auto(found, settings, warn=False)
    for name in settings.backend:
        if _judge(found.plugins[name], settings).usable:
            return name
    raise BackendUnavailable(f"{settings.source('backend')}: none of {', '.join(settings.backend)} is usable")
