"""Importing one backend's class and holding it to the interface (rules B3, B4, B7)."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slotline.core.backend import PROBE_RAISED, Abilities, Backend, Probe
from slotline.core.discovery import Plugin, load_class
from slotline.core.errors import BackendUnavailable, SlotlineError


class MissingPackage(BackendUnavailable):
    """A package that the backend wants is not installed: a line in ``doctor``, not a broken plugin (B7)."""


class BrokenPlugin(BackendUnavailable):
    """The plugin fails where it should not."""


def load_backend_class(plugin: Plugin) -> type[Backend]:
    """The backend's class, checked. ``BackendUnavailable`` with the cause chained."""
    if plugin.problem:
        raise BackendUnavailable(f"backend {plugin.name!r} ({plugin.origin}): {plugin.problem}")
    try:
        found = load_class(plugin)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        kind = MissingPackage if missing and missing not in (plugin.package, "slotline") else BrokenPlugin
        raise kind(f"{_who(plugin)} cannot be imported: {_said(error)}") from error
    except SlotlineError:
        raise
    except Exception as error:
        raise BrokenPlugin(f"{_who(plugin)} cannot be imported: {_said(error)}") from error
    problem = _interface_problem(plugin, found)
    if problem:
        raise BrokenPlugin(f"{_who(plugin)}: {problem}")
    checked: type[Backend] = found
    return checked


def _who(plugin: Plugin) -> str:
    return f"backend {plugin.name!r} of {plugin.origin}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _interface_problem(plugin: Plugin, found: Any) -> str:
    if not inspect.isclass(found) or not issubclass(found, Backend):
        return f"{plugin.target} is {found!r}, needed: a subclass of slotline.Backend"
    if getattr(found, "name", None) != plugin.name:
        return (
            f"{found.__name__}.name is {getattr(found, 'name', None)!r}, needed: its entry point's name {plugin.name!r}"
        )
    if not isinstance(found.abilities, Abilities):
        return f"{found.__name__}.abilities is {type(found.abilities).__name__}, needed: slotline.Abilities(...)"
    if found.priority is not None and (isinstance(found.priority, bool) or not isinstance(found.priority, int)):
        return f"{found.__name__}.priority is {found.priority!r}, needed: a whole number or None"
    for hook in sorted(found.__abstractmethods__):
        return f"{found.__name__} lacks {hook}{inspect.signature(getattr(Backend, hook))}"
    for special in ("__len__", "__bool__"):
        if hasattr(found, special):
            return f"{found.__name__} has {special}; a falsy backend is taken for a missing one, remove it"
    for hook in _hooks():
        problem = _signature_problem(found, hook)
        if problem:
            return problem
    return ""


def _hooks() -> list[str]:
    return [
        n
        for n in vars(Backend)
        if n.startswith("_") and not n.startswith(("__", "_abc")) and callable(getattr(Backend, n))
    ]


def _signature_problem(found: type[Backend], hook: str) -> str:
    """A hook that cannot be called as the base class calls it."""
    wanted, given = inspect.signature(getattr(Backend, hook)), inspect.signature(getattr(found, hook))
    positional = [p for p in wanted.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    keywords = {p.name: None for p in wanted.parameters.values() if p.kind is p.KEYWORD_ONLY}
    try:
        given.bind(*[None] * len(positional), **keywords)
    except TypeError:
        return f"{found.__name__}.{hook}{given} cannot be called as {hook}{wanted}"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a probe found, with what the class declares."""

    usable: bool
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    vendor: str | None = None
    broken: bool = False
    """The plugin failed where it should not; worth a warning."""


def probe_here(plugin: Plugin, options: Mapping[str, Any]) -> Verdict:
    """Import and probe in this process. Never raises."""
    try:
        found = load_backend_class(plugin)
    except BackendUnavailable as error:
        return Verdict(usable=False, reason=str(error), broken=isinstance(error, BrokenPlugin))
    probe = found.probe(**options)
    raised = probe.reason.startswith(PROBE_RAISED)
    return _verdict(probe, found, raised)


def _verdict(probe: Probe, found: type[Backend], broken: bool) -> Verdict:
    return Verdict(
        usable=bool(probe.usable),
        reason=str(probe.reason),
        versions={str(k): str(v) for k, v in probe.versions.items()},
        priority=found.priority,
        vendor=found.vendor,
        broken=broken,
    )


def probe_in_child(plugin: Plugin, options: Mapping[str, Any], timeout: float) -> Verdict:
    """Import and probe in a child process, which may hang or crash without harm (B3)."""
    question = json.dumps({"name": plugin.name, "options": dict(options), "path": sys.path})
    command = [sys.executable, "-c", "from slotline.core.loading import answer; answer()"]
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        reason = f"{_who(plugin)}: its probe took more than {timeout:g} s (SLOTLINE_PROBE_TIMEOUT)"
        return Verdict(usable=False, reason=reason, broken=True)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        try:
            return Verdict(**json.loads(lines[-1]))
        except (json.JSONDecodeError, TypeError):
            pass
    tail = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return Verdict(usable=False, reason=f"{_who(plugin)}: its probe ended with {how}: {tail}", broken=True)


def answer() -> None:
    """The child's side of ``probe_in_child``: one line of JSON on stdout."""
    from dataclasses import asdict

    from slotline.core.discovery import discover

    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    out, sys.stdout = sys.stdout, sys.stderr  # whatever a plugin prints is not the answer
    verdict = probe_here(discover().plugins[question["name"]], question["options"])
    print(json.dumps(asdict(verdict)), file=out)
