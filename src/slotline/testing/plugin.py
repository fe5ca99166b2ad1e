"""A pytest plugin for the conformance kit: which backend, how thorough, and a verdict for each rule.

Loaded by name only, ``-p slotline.testing.plugin``: registered for everyone it would import slotline before coverage
is measured. ``slotline conformance NAME`` uses it.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from slotline.core.discovery import discover, require_known
from slotline.core.errors import BackendUnavailable, SlotlineError
from slotline.core.loading import load_backend_class
from slotline.core.settings import load_settings
from slotline.testing.rules import RULES
from slotline.testing.verdicts import Verdicts

PROFILES = {"dev": 20, "ci": 100, "thorough": 2000}
"""Examples of a property by profile."""
OPTION = "slotline_new_backend"
"""Where ``pytest_configure`` leaves what makes the backend."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slotline", "slotline's conformance kit")
    group.addoption("--backend", metavar="NAME", help="the installed backend that the kit runs on")
    group.addoption("--framework", metavar="NAME", help="whose tensors (default: the backend's own)")
    group.addoption("--vendor", metavar="NAME", help="which maker's device, where one name stands for several")
    group.addoption("--profile", choices=list(PROFILES), help="how many examples: dev 20, ci 100, thorough 2000")
    group.addoption("--rules", metavar="RULES", help="only the tests of these rules, with commas between: W1,W4")
    group.addoption("--known-failures", metavar="FILE", help='a TOML file of test_name = "reason"')
    group.addoption("--conformance-json", metavar="FILE", help="write the verdict of each rule there")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("--profile")
    if chosen is not None:
        for name, count in PROFILES.items():
            settings.register_profile(
                f"slotline-{name}", max_examples=count, deadline=None, derandomize=_fixed(config, name)
            )
        settings.load_profile(f"slotline-{chosen}")
    name = config.getoption("--backend")
    if name is not None:
        try:
            setattr(config, OPTION, _opener(name, config.getoption("--framework"), config.getoption("--vendor")))
        except SlotlineError as error:
            raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(Verdicts(name, config.getoption("--conformance-json")), "slotline-verdicts")


def _fixed(config: pytest.Config, profile: str) -> bool:
    """The profile ``ci`` draws the same examples each time, unless a seed is given."""
    return profile == "ci" and config.getoption("--hypothesis-seed", default=None) is None


def _opener(name: str, framework: str | None, vendor: str | None) -> Any:
    """What makes the backend ``name``; ``BackendUnavailable`` if it cannot be used here (B4)."""
    chosen = load_settings({"backend": name, "framework": framework, "vendor": vendor})
    found = discover(chosen.allowed_plugins)
    require_known(chosen.backend, found.plugins, "--backend")
    if len(chosen.backend) != 1:
        raise BackendUnavailable(f"--backend is {name!r}, needed: one name of {', '.join(found.plugins)}")
    kind = load_backend_class(found.plugins[chosen.backend[0]])
    options: dict[str, Any] = {"framework": chosen.framework, "vendor": chosen.vendor}
    verdict = kind.ask(**options, device=chosen.device)
    if not verdict.usable:
        raise BackendUnavailable(f"backend {name!r} cannot be used: {verdict.reason}")
    return functools.partial(kind, **options)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _rules_of(item):
            item.user_properties.append(("rules", " ".join(_rules_of(item))))
    _take_known_failures(config, items)
    _keep_rules(config, items)


def _rules_of(item: pytest.Item) -> tuple[str, ...]:
    return getattr(getattr(item, "function", None), "conformance_rules", ())


def _keep_rules(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--rules")
    if chosen is None:
        return
    wanted = {name.strip().upper() for name in chosen.split(",") if name.strip()}
    unknown = sorted(wanted - set(RULES))
    if unknown or not wanted:
        raise pytest.UsageError(
            f"--rules: unknown rule {', '.join(unknown) or repr(chosen)}, known: {', '.join(RULES)}"
        )
    kept = [item for item in items if wanted & set(_rules_of(item))]
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = kept


def _take_known_failures(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--known-failures")
    if path is None:
        return
    from slotline.testing.conformance.base import check_known_failures

    try:
        known = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--known-failures {path}: {error}") from error
    for kit in {item.cls for item in items if isinstance(item, pytest.Function) and item.cls is not None}:
        try:
            check_known_failures(kit, known)
        except TypeError as error:
            raise pytest.UsageError(f"--known-failures {path}: {error}") from error
        kit.known_failures = known


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and report.failed:
        report.user_properties.append(("failure", _said(call.excinfo.value)))
    return report


def _said(error: BaseException) -> str:
    """What an exception says, with Hypothesis's smallest example behind it."""
    told = ("Falsifying example", "Failing test case", "Draw ", "state.", "state =")
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(told)]
    return "\n".join([f"{type(error).__name__}: {error}", *notes])
