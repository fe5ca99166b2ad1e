"""Choosing a backend: by name, from a list, or the best that is usable (rules B4 to B7, C)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slotline.core.backend import Backend
from slotline.core.discovery import Discovery, Plugin, discover, require_known
from slotline.core.errors import BackendUnavailable, ConfigError
from slotline.core.loading import load_backend_class, require_made, said, who
from slotline.core.probing import Verdict, probe_in_child
from slotline.core.settings import Settings, load_settings

FALLBACK = "cpu"


class NotOffered(ConfigError, BackendUnavailable):
    """A setting names a framework, a vendor or a device that the chosen backend does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """One backend as ``slotline doctor`` lists it."""

    name: str
    vendor: str | None
    usable: bool
    reason: str
    """Why it is not usable; empty if it is."""
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    """Its device, its staging memory, how packets are applied."""
    priority: int | None = None
    distribution: str = ""
    """Name and version of what brings it."""
    broken: bool = False
    """It fails where it should not."""


class Candidate(NamedTuple):
    """A backend with a verdict on it, one for each vendor where it has several."""

    plugin: Plugin
    verdict: Verdict

    @property
    def label(self) -> str:
        vendor = self.verdict.vendor
        return f"{self.plugin.name} ({vendor})" if vendor else self.plugin.name


def backend_names() -> list[str]:
    """The installed backends' names; imports none of them (B2)."""
    return list(discover().plugins)


def list_backends() -> list[BackendInfo]:
    """Every installed backend with its verdict, each probed in a process of its own with a time limit (B3).

    A backend of several vendors has a line for each. Raises ``ConfigError`` for settings that cannot be used; a
    backend never raises here.
    """
    settings = load_settings()
    found = discover(settings.allowed_plugins)
    return [_info(candidate) for candidate in _judge((*found.plugins.values(), *found.refused), settings)]


def _info(candidate: Candidate) -> BackendInfo:
    plugin, verdict = candidate
    return BackendInfo(
        name=plugin.name,
        vendor=verdict.vendor,
        usable=verdict.usable,
        reason="" if verdict.usable else verdict.reason,
        versions=verdict.versions,
        details=verdict.details,
        priority=verdict.priority,
        distribution=plugin.origin,
        broken=verdict.broken,
    )


def _judge(plugins: Iterable[Plugin], settings: Settings) -> list[Candidate]:
    """Verdicts in the order of ``plugins``; the probes run side by side, since most of their time is imports."""
    options = {"framework": settings.framework, "vendor": settings.vendor, "device": settings.device}

    def ask(plugin: Plugin) -> list[Candidate]:
        if plugin.problem:
            verdicts = [Verdict(usable=False, reason=plugin.problem, broken=plugin.allowed)]
        else:
            verdicts = probe_in_child(plugin, options, settings.probe_timeout)
        return [Candidate(plugin, verdict) for verdict in verdicts]

    # More at once than there are cores would run into their time limits; two, so that one that hangs blocks no other.
    with ThreadPoolExecutor(max_workers=max(2, min(8, os.cpu_count() or 2))) as pool:
        return [candidate for found in pool.map(ask, plugins) for candidate in found]


def load_backend(
    name: str | None = None, *, framework: str | None = None, vendor: str | None = None, device: int | None = None
) -> Backend:
    """The backend ``name``, else the one that the settings name, else the best that is usable (C).

    ``name``: a name, names with commas between (the first usable), or ``"auto"``: the usable accelerator of the
    highest priority, else ``cpu``. A backend that is named is never replaced by another. ``framework``, ``vendor`` and
    ``device`` hold for whatever is taken: "auto" passes over accelerators that do not have them.

    Raises ``BackendUnavailable`` if what was asked for cannot be used, the cause chained; ``ConfigError`` for an
    unknown name or setting, or where two accelerators, or two vendors of one, could be meant. An error that is both
    where the backend never has the framework, the vendor or the device.
    """
    arguments = {"backend": name, "framework": framework, "vendor": vendor, "device": device}
    settings = load_settings(arguments)
    found = discover(settings.allowed_plugins)
    if not settings.backend:
        best = select_auto(found, settings, warn=True)
        require_known([FALLBACK], found.plugins, "slotline itself is not installed, so it has no backend")
        if best is None and settings.vendor is not None:
            why = f"no usable device of vendor {settings.vendor!r}; `slotline doctor` says why"
            raise BackendUnavailable(f"{settings.source('vendor')}: {why}; leave the vendor out to take any device")
        if best is None:
            return _create(found.plugins[FALLBACK], settings)
        return _create(best.plugin, settings, best.verdict.vendor)
    require_known(settings.backend, found.plugins, settings.source("backend"))
    failures: list[BackendUnavailable] = []
    for wanted in settings.backend:
        try:
            return _create(found.plugins[wanted], settings)
        except BackendUnavailable as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(str(f) for f in failures)
    raise BackendUnavailable(f"{settings.source('backend')}: none is usable: {reasons}") from failures[0]


def _create(plugin: Plugin, settings: Settings, vendor: str | None = None) -> Backend:
    """Probe in this process, then make the object (B3, B4)."""
    found = load_backend_class(plugin)
    options: dict[str, Any] = {"framework": settings.framework, "device": settings.device}
    for key, problem in found.not_offered(**options, vendor=settings.vendor).items():
        raise NotOffered(f"{settings.source(key)}: {who(plugin)} {problem}")
    try:
        options["vendor"] = vendor or settings.vendor or _vendor(plugin, found, options)
        verdict = found.ask(**options)
        if verdict.usable:
            made = found(**options, staging_bytes=settings.staging_bytes)
            require_made(plugin, made)
            return made
    except (BackendUnavailable, ConfigError):
        raise
    except (Exception, SystemExit) as error:
        raise BackendUnavailable(f"{who(plugin)} cannot be used: {said(error)}") from error
    raise BackendUnavailable(f"{who(plugin)} cannot be used: {verdict.reason}")


def _vendor(plugin: Plugin, found: type[Backend], options: Mapping[str, Any]) -> str | None:
    """The vendor that is meant where none was named: the only one that is usable (B6)."""
    if not found.vendors:
        return None
    verdicts = {vendor: found.probe(**options, vendor=vendor) for vendor in found.vendors}
    usable = [vendor for vendor, verdict in verdicts.items() if verdict.usable]
    if len(usable) > 1:
        raise ConfigError(
            f"{who(plugin)}: usable for {' and '.join(usable)}; choose with vendor=... or SLOTLINE_VENDOR"
        )
    if not usable:
        reasons = "; ".join(f"{vendor}: {verdict.reason}" for vendor, verdict in verdicts.items())
        raise BackendUnavailable(f"{who(plugin)} cannot be used: {reasons}")
    return usable[0]


def select_auto(found: Discovery, settings: Settings, *, warn: bool) -> Candidate | None:
    """What "auto" takes; None: the fallback, since no accelerator is usable (B5)."""
    candidates = _judge([p for n, p in found.plugins.items() if n != FALLBACK], settings)
    usable = [c for c in candidates if c.verdict.usable and c.verdict.priority is not None]
    broken = [f"{c.plugin.origin}: {c.verdict.reason}" for c in candidates if c.verdict.broken]
    broken += [f"{p.origin}: backend {p.name!r}: {p.problem}" for p in found.refused]
    if broken and warn:
        chosen = "" if usable else f"; using {FALLBACK}"
        warnings.warn(f"broken backend plugins: {'; '.join(broken)}{chosen}", RuntimeWarning, stacklevel=3)
    if not usable:
        return None
    rank = max(p for c in usable if (p := c.verdict.priority) is not None)
    best = [c for c in usable if c.verdict.priority == rank]
    vendors = [c for c in usable if c.plugin.name == best[0].plugin.name]
    if len({c.plugin.name for c in best}) > 1:
        names = " and ".join(c.label for c in best)
        raise ConfigError(f"usable backends of equal priority {rank}: {names}; choose with SLOTLINE_BACKEND")
    if len(vendors) > 1:
        names = " and ".join(c.label for c in vendors)
        raise ConfigError(f"usable backends of one name: {names}; choose with SLOTLINE_VENDOR")
    return best[0]


def selected_backend() -> str:
    """The name that ``load_backend()`` would take now; imports and probes as "auto" does, warns of nothing."""
    settings = load_settings()
    found = discover(settings.allowed_plugins)
    if not settings.backend:
        best = select_auto(found, settings, warn=False)
        if best is not None:
            return best.plugin.name
        (last,) = _judge([found.plugins[FALLBACK]], settings)
        if not last.verdict.usable:
            raise BackendUnavailable(f"{FALLBACK}, the only device left, cannot be used: {last.verdict.reason}")
        return FALLBACK
    require_known(settings.backend, found.plugins, settings.source("backend"))
    candidates = _judge([found.plugins[name] for name in settings.backend], settings)
    for candidate in candidates:
        if candidate.verdict.usable:
            return candidate.plugin.name
    raise BackendUnavailable(f"{settings.source('backend')}: none of {', '.join(settings.backend)} is usable")
