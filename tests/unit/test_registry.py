"""Discovery, loading and choice in parts: what the cases of plugins do not reach (rules B1 to B7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import slotline as sl
from slotline.core import probing, registry
from slotline.core.discovery import Discovery, Plugin, discover
from slotline.core.loading import interface_problem, load_backend_class
from slotline.core.probing import Verdict

PLUGINS = Path(__file__).parents[1] / "plugins"
Cpu: Any = type(sl.load_backend("cpu"))


def plugin(name: str = "mine", **changes: Any) -> Plugin:
    point = EntryPoint(name, f"{name}_package:Backend", "slotline.backends")
    given: dict[str, Any] = {"name": name, "target": point.value, "distribution": "some-dist", "version": "2.1"}
    return Plugin(**{**given, "entry_point": point, **changes})


def child(code: str, *plugins: str, **env: str) -> Any:
    """What ``code`` prints as JSON, in a process that sees ``plugins`` of the tests."""
    path = os.pathsep.join(str(PLUGINS / p) for p in ("hostmem", *plugins))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTLINE_")}
    script = f"import json, sys, slotline as sl\n{code}"
    command = [sys.executable, "-c", script]
    full = {**clean, "PYTHONPATH": path, "SLOTLINE_PROBE_TIMEOUT": "60", **env}
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


ROWS = "print(json.dumps([[b.name, b.vendor, b.usable, b.reason, b.distribution] for b in sl.list_backends()]))"
NAMED = """
try:
    print(json.dumps(sl.load_backend(*{arguments}).name))
except Exception as error:
    print(json.dumps([[c.__name__ for c in type(error).__mro__], str(error), repr(error.__cause__)]))
"""


class TestDiscovery:
    def test_b1_our_own_backends_are_there_under_their_distribution(self) -> None:
        cpu = discover().plugins["cpu"]
        assert (cpu.is_own, cpu.package, cpu.origin) == (True, "slotline", f"slotline {sl.__version__}")

    def test_b7_metadata_that_cannot_be_read_takes_nothing_down(self) -> None:
        rows = {row[0]: row for row in child(ROWS, "unreadable_metadata", "good_device")}
        assert rows["good"][2]
        assert rows["cpu"][2]
        assert "entry points cannot be read" in rows["unreadable-metadata"][3]
        assert child(NAMED.format(arguments=["good"]), "unreadable_metadata", "good_device") == "good"

    def test_b7_a_distribution_without_metadata_is_unknown(self, tmp_path: Path) -> None:
        info = tmp_path / "bare-1.0.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text("[slotline.backends]\nbare = nothing_here:Backend\n")
        rows = {row[0]: row for row in child(ROWS, str(tmp_path))}
        assert rows["bare"][4] == "unknown"
        assert not rows["bare"][2]

    def test_c_the_case_of_a_backend_s_own_name_does_not_matter(self) -> None:
        for name in ("upper", "UPPER", "Upper"):
            assert child(NAMED.format(arguments=[name]), "upper_case") == "Upper"

    @pytest.mark.parametrize("name", ["CPU", "Cuda", "xpu", "SIM"])
    def test_b1_a_reserved_name_stays_reserved_in_capitals(self, name: str, tmp_path: Path) -> None:
        info = tmp_path / "thief-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Thief\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[slotline.backends]\n{name} = nothing_here:Backend\n")
        rows = {(row[0], row[4]): row for row in child(ROWS, str(tmp_path))}
        assert "reserved" in rows[name.lower(), "thief 1.0"][3]

    def test_b1_one_distribution_with_one_name_for_two_targets_is_an_error(self, tmp_path: Path) -> None:
        info = tmp_path / "double-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: double\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[slotline.backends]\ndouble = one:Backend\nDouble = two:Backend\n")
        rows = {row[0]: row for row in child(ROWS, str(tmp_path))}
        assert "one:Backend and two:Backend" in rows["double"][3]


class TestInterface:
    """B4, B7: what is wrong with a class is said with plugin, method and signature."""

    @pytest.mark.parametrize("thing", [object(), dict, None, 3])
    def test_b7_something_else_than_a_backend(self, thing: Any) -> None:
        assert "needed: a subclass of slotline.Backend" in interface_problem(plugin(), thing)

    @pytest.mark.parametrize(
        ("members", "says"),
        [
            ({"name": "other"}, "needed: its entry point's name 'mine'"),
            ({"abilities": {"streams": True}}, "abilities is dict"),
            ({"priority": True}, "priority is True"),
            ({"priority": 1.5}, "priority is 1.5"),
            ({"frameworks": "numpy"}, "frameworks is 'numpy'"),
            ({"frameworks": ()}, "frameworks is empty"),
            ({"vendors": ["a"]}, "vendors is ['a']"),
            ({"device_count": 0}, "device_count is 0"),
            ({"device_count": True}, "device_count is True"),
            ({"__len__": lambda self: 0}, "has __len__"),
            ({"_write": 3}, "_write is 3"),
            ({"_read": lambda self, tensor: b""}, "cannot be called as _read(self, tensor"),
            ({"_probe": lambda self, framework, vendor, device: None}, "cannot be called as _probe("),
            ({}, ""),
            ({"_set": lambda self, *args: None}, ""),
            ({"_write": len}, "cannot be called as _write("),
        ],
    )
    def test_b7_a_member_that_does_not_fit(self, members: dict[str, Any], says: str) -> None:
        found = type("Mine", (Cpu,), {"name": "mine", **members})
        problem = interface_problem(plugin(), found)
        assert (says in problem) if says else not problem

    def test_b7_a_hook_that_is_missing_is_named_with_its_signature(self) -> None:
        found = type("Mine", (sl.Backend,), {"name": "mine"})
        assert "Mine lacks _allocate(self, specs" in interface_problem(plugin(), found)

    def test_b4_a_plugin_with_a_problem_is_not_imported(self) -> None:
        with pytest.raises(sl.BackendUnavailable, match=r"'mine' \(some-dist 2\.1\): no good"):
            load_backend_class(plugin(problem="no good"))


class TestProbes:
    def test_b3_what_a_driver_prints_is_not_the_answer(self) -> None:
        rows = {row[0]: row for row in child(ROWS, "noisy_probe")}
        assert rows["noisy"][2], rows["noisy"]

    def test_b3_b4_a_plugin_that_ends_the_process_ends_its_probe_only(self) -> None:
        rows = {row[0]: row for row in child(ROWS, "exits_at_import")}
        assert "SystemExit: 3" in rows["exits"][3]
        kinds, text, cause = child(NAMED.format(arguments=["exits"]), "exits_at_import")
        assert "BackendUnavailable" in kinds
        assert "exits-at-import 1.0" in text
        assert cause == "SystemExit(3)"

    @pytest.mark.parametrize("timeout", ["1e15", "1e7"])
    def test_b3_a_time_limit_that_is_far_too_long_is_no_error(self, timeout: str) -> None:
        assert child(ROWS, SLOTLINE_PROBE_TIMEOUT=timeout)

    def test_b3_no_child_process_is_a_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", str(PLUGINS / "no-such-python"))
        (verdict,) = probing.probe_in_child(plugin(), {}, 1)
        assert not verdict.usable
        assert "could be started" in verdict.reason

    def test_b3_an_answer_of_other_shape_is_a_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for answer in ("7", "[{}]", '[{"usable": true, "what": 1}]', "[3]", "no json"):
            monkeypatch.setattr(probing, "_CHILD", f"print({answer!r})")
            (verdict,) = probing.probe_in_child(plugin(), {}, 60)
            assert not verdict.usable
            assert verdict.broken
            assert "status 0" in verdict.reason

    def test_b3_the_child_sees_the_parent_s_path(self) -> None:
        code = f"import pathlib\nsys.path.insert(0, pathlib.Path({str(PLUGINS / 'good_device')!r}))\n{ROWS}"
        assert ["good", None, True] in [row[:3] for row in child(code)]


class TestVendors:
    """B6, C83: one name for two makers."""

    def load(self, there: str, *arguments: str, **env: str) -> Any:
        return child(NAMED.format(arguments=list(arguments)), "two_vendors", SLOTLINE_TEST_VENDORS=there, **env)

    def test_b6_each_vendor_has_a_line(self) -> None:
        rows = child(ROWS, "two_vendors", SLOTLINE_TEST_VENDORS="intel")
        assert [row[1:3] for row in rows if row[0] == "twovendors"] == [["kunlun", False], ["intel", True]]

    @pytest.mark.parametrize("arguments", [["twovendors"], []], ids=["named", "auto"])
    def test_b6_both_usable_and_none_named_is_an_error(self, arguments: list[str]) -> None:
        kinds, text, _ = self.load("kunlun,intel", *arguments)
        assert "ConfigError" in kinds
        for part in ("kunlun", "intel", "SLOTLINE_VENDOR"):
            assert part in text

    @pytest.mark.parametrize("arguments", [["twovendors"], []], ids=["named", "auto"])
    def test_b6_one_usable_or_one_named_is_taken(self, arguments: list[str]) -> None:
        assert self.load("intel", *arguments) == "twovendors"
        assert self.load("kunlun,intel", *arguments, SLOTLINE_VENDOR="kunlun") == "twovendors"

    def test_b6_none_usable_says_why_for_each(self) -> None:
        kinds, text, _ = self.load("", "twovendors")
        assert "BackendUnavailable" in kinds
        assert "no device of kunlun" in text
        assert "no device of intel" in text

    def test_b6_auto_takes_devices_of_the_vendor_only(self) -> None:
        assert self.load("intel", SLOTLINE_VENDOR="intel") == "twovendors"
        auto, there = NAMED.format(arguments=[]), {"SLOTLINE_TEST_VENDORS": "intel"}
        assert child(auto, "two_vendors", "kunlun_like", **there) == "kunlunlike"
        assert child(auto, "two_vendors", "kunlun_like", SLOTLINE_VENDOR="intel", **there) == "twovendors"
        kinds, text, _ = self.load("kunlun", SLOTLINE_VENDOR="intel")
        assert "BackendUnavailable" in kinds
        assert text.startswith("SLOTLINE_VENDOR: no usable device of vendor 'intel'")

    def test_b6_the_vendor_is_the_object_s(self) -> None:
        code = "print(json.dumps(sl.load_backend('twovendors', vendor='intel').vendor))"
        assert child(code, "two_vendors", SLOTLINE_TEST_VENDORS="intel,kunlun") == "intel"


class TestChoice:
    """B5 on verdicts that are given."""

    @staticmethod
    def choose(monkeypatch: pytest.MonkeyPatch, **verdicts: Verdict) -> Any:
        found = Discovery({n: plugin(n) for n in (*verdicts, "cpu")}, [])
        monkeypatch.setattr(registry, "discover", lambda _allowed=None: found)
        monkeypatch.setattr(registry, "probe_in_child", lambda p, _options, _timeout: [verdicts[p.name]])
        monkeypatch.setattr(registry, "_create", lambda p, _settings, vendor=None: (p.name, vendor))
        return sl.load_backend("auto")

    def test_b5_the_highest_priority_wins_and_none_is_never_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        low, high = Verdict(usable=True, priority=-5), Verdict(usable=True, priority=7)
        assert self.choose(monkeypatch, a=low, b=high, c=Verdict(usable=True)) == ("b", None)
        assert self.choose(monkeypatch, a=low, c=Verdict(usable=True)) == ("a", None)
        assert self.choose(monkeypatch, c=Verdict(usable=True)) == ("cpu", None)
        assert self.choose(monkeypatch, b=Verdict(usable=False, priority=9, reason="no driver")) == ("cpu", None)

    def test_c76_equal_priorities_only_matter_at_the_top(self, monkeypatch: pytest.MonkeyPatch) -> None:
        equal, high = Verdict(usable=True, priority=5), Verdict(usable=True, priority=7)
        assert self.choose(monkeypatch, a=equal, b=equal, c=high) == ("c", None)
        with pytest.raises(sl.ConfigError, match="equal priority 5: a and b; choose with SLOTLINE_BACKEND"):
            self.choose(monkeypatch, a=equal, b=equal)

    def test_b5_what_is_only_absent_is_no_warning_and_what_is_broken_is_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        absent = Verdict(usable=False, reason="no driver")
        broken = Verdict(usable=False, reason="it burns", broken=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.choose(monkeypatch, a=absent)
        with pytest.warns(RuntimeWarning, match=r"some-dist 2\.1: it burns.*using cpu") as told:
            self.choose(monkeypatch, a=absent, b=broken, c=broken)
        assert len(told) == 1


def test_b4_what_the_maker_of_the_object_raises_is_chained(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, **_options: Any) -> None:
        raise OSError("no such queue")

    monkeypatch.setattr(Cpu, "__init__", broken)
    with pytest.raises(sl.BackendUnavailable, match="OSError: no such queue") as caught:
        sl.load_backend("cpu")
    assert isinstance(caught.value.__cause__, OSError)
