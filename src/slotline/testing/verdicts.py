"""What a run of the conformance kit found, rule by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotline.testing.rules import RULES

PASS, FAIL, SKIP = "pass", "fail", "skip"


class Verdicts:
    """Collects the reports of one session; registered as a plugin of pytest.

    A rule fails if one of its tests does; it is skipped if all of them are.
    """

    def __init__(self, backend: str | None, path: str | None = None) -> None:
        self.backend, self.path = backend, path
        self.counts = {PASS: 0, FAIL: 0, SKIP: 0}
        self.found: dict[str, set[str]] = {}
        self.failures: list[dict[str, Any]] = []
        self.reasons: dict[str, list[str]] = {}
        """Why tests were skipped, by rule."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        rules = str(properties.get("rules", "")).split()
        if not rules or (report.passed and report.when != "call"):
            return
        expected = hasattr(report, "wasxfail")
        outcome = FAIL if report.failed else SKIP if report.skipped else PASS
        self.counts[outcome] += 1
        for name in rules:
            self.found.setdefault(name, set()).add(outcome)
        test = report.nodeid.split("::")[-1]
        if outcome == SKIP:
            why = f"known failure: {report.wasxfail}" if expected else _skip_reason(report)
            for name in rules:
                if why not in self.reasons.setdefault(name, []):
                    self.reasons[name].append(why)
        elif outcome == FAIL:
            said = str(properties.get("failure") or report.longreprtext).strip()
            self.failures.append({"rules": rules, "test": test, "message": said})

    @property
    def rules(self) -> dict[str, str]:
        """The verdict of each rule that has tests, in the order of ``RULES``."""
        out = {}
        for name in RULES:
            outcomes = self.found.get(name)
            if outcomes:
                out[name] = FAIL if FAIL in outcomes else PASS if PASS in outcomes else SKIP
        return out

    def as_dict(self) -> dict[str, Any]:
        """What ``slotline conformance --json`` prints."""
        return {
            "backend": self.backend,
            "passed": self.counts[PASS],
            "failed": self.counts[FAIL],
            "skipped": self.counts[SKIP],
            "rules": self.rules,
            "failures": self.failures,
            "skip_reasons": self.reasons,
        }

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.path is not None and not hasattr(session.config, "workerinput"):
            Path(self.path).write_text(json.dumps(self.as_dict()), "utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.found:
            return
        terminalreporter.section("slotline's rules")
        for name, verdict in self.rules.items():
            more = f"  {RULES[name].advice}" if verdict == FAIL else ""
            terminalreporter.line(f"{name:4} {verdict:5} {RULES[name].title}{more and ':'}{more}")


def _skip_reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext
