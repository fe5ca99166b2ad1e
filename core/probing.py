"""Whether a backend can be used here, found out in a child process that may hang or crash (rules B3, B6)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from slotline.core.backend import Backend
from slotline.core.discovery import Plugin, discover
from slotline.core.errors import BackendUnavailable
from slotline.core.loading import BrokenPlugin, load_backend_class, who

MOST_READ = 1 << 20
"""Bytes of what a child prints."""
LONGEST_WAIT = 1e6
"""Seconds; the system's calls refuse much longer ones."""

# The path comes before the import: the parent may have found slotline by a path that only it has. What a plugin or
# its driver prints goes to stderr, so that the answer stands alone on stdout.
_CHILD = """
import json, os, sys
question = json.load(sys.stdin)
sys.path[:] = question["path"]
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from slotline.core.probing import reply
answer.write(reply(question))
answer.close()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a probe found, with what the class declares."""

    usable: bool
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    vendor: str | None = None
    broken: bool = False
    """The plugin failed where it should not; worth a warning."""


def probe_here(plugin: Plugin, options: Mapping[str, Any]) -> list[Verdict]:
    """Import and probe in this process: one verdict, or one for each of the vendors. Never raises."""
    try:
        found = load_backend_class(plugin)
    except BackendUnavailable as error:
        return [Verdict(usable=False, reason=str(error), broken=isinstance(error, BrokenPlugin))]
    asked = options["vendor"]
    if found.vendors and asked is None:
        return [_verdict(plugin, found, {**options, "vendor": vendor}) for vendor in found.vendors]
    return [_verdict(plugin, found, options)]


def _verdict(plugin: Plugin, found: type[Backend], options: Mapping[str, Any]) -> Verdict:
    try:
        probe = found.probe(**options)
        priority = found.rank(options["vendor"])
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise TypeError(f"{found.__name__}.rank returned {priority!r}, needed: a whole number or None")
        return Verdict(
            usable=bool(probe.usable),
            reason=str(probe.reason),
            versions={str(k): str(v) for k, v in probe.versions.items()},
            details={str(k): str(v) for k, v in probe.details.items()},
            priority=None if probe.by_name_only else priority,
            vendor=options["vendor"] if found.vendors else found.vendor,
            broken=probe.raised,
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a verdict of odd types; B3)
        return Verdict(usable=False, reason=f"{who(plugin)}: {type(error).__name__}: {error}", broken=True)


def probe_in_child(plugin: Plugin, options: Mapping[str, Any], timeout: float) -> list[Verdict]:
    """``probe_here`` in a process of its own, with a time limit in seconds. Never raises."""
    question = {
        "name": plugin.name,
        "options": dict(options),
        "path": [str(p) for p in sys.path],
    }
    with contextlib.ExitStack() as files:
        try:
            given, out_file, err_file = (files.enter_context(_scratch()) for _ in range(3))
            given.write(json.dumps(question).encode())
            given.seek(0)
            # A session of its own, so that the processes which a probe starts end with it.
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD],
                stdin=given,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        except OSError as error:
            return [Verdict(usable=False, reason=f"{who(plugin)}: no process for its probe could be started: {error}")]
        try:
            child.wait(timeout=min(timeout, LONGEST_WAIT))
        except subprocess.TimeoutExpired:
            reason = f"{who(plugin)}: its probe took more than {timeout:g} s (SLOTLINE_PROBE_TIMEOUT)"
            return [Verdict(usable=False, reason=reason, broken=True)]
        finally:
            _end(child)
        out, err = _written(out_file), _written(err_file)
    try:
        if child.returncode == 0:
            return [Verdict(**row) for row in json.loads(out)]
    except (ValueError, TypeError):
        pass
    tail = (err.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
    return [Verdict(usable=False, reason=f"{who(plugin)}: its probe ended with {how}: {tail}", broken=True)]


def _scratch() -> IO[bytes]:
    """A file without a name, for what a pipe would be for: one that the child's own children hold open has no end.

    In memory where the system can, since an engine's container may have no folder to write to.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("slotline-probe"), "w+b")
    return tempfile.TemporaryFile()


def _written(file: IO[bytes]) -> bytes:
    """The end of what was written: a driver may print without end."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_READ))
    return file.read()


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started. It is not waited for: in a driver that hangs it cannot even be killed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1)


def reply(question: Mapping[str, Any]) -> str:
    """The child's side of ``probe_in_child``: verdicts as JSON."""
    plugin = discover().plugins[question["name"]]
    return json.dumps([asdict(verdict) for verdict in probe_here(plugin, question["options"])])
