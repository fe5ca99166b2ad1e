"""Cases of plugins and selection, with distributions as they lie in an environment (rules B1 to B5, B7, C).

Each runs in a child process, which sees just the distributions that it names.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLUGINS = Path(__file__).parents[1] / "plugins"

SCRIPT = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import slotline as sl
    try:
        result = {body}
    except Exception as error:
        cause = error.__cause__
        result = {{"raised": [c.__name__ for c in type(error).__mro__], "text": str(error), "cause": repr(cause)}}
told = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
print(json.dumps({{"result": result, "warnings": told, "modules": sorted(sys.modules)}}))
"""

LOAD = "sl.load_backend({}).name"
LIST = (
    "[{{'name': b.name, 'usable': b.usable, 'reason': b.reason, 'distribution': b.distribution}} "
    "for b in sl.list_backends()]"
)


def run(body: str, *plugins: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> dict[str, Any]:
    """The outcome of ``body`` in a process that sees ``plugins``, in that order on its path."""
    path = os.pathsep.join(str(PLUGINS / p) for p in ("hostmem", *plugins))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTLINE_")}
    full = {**clean, "PYTHONPATH": path, "SLOTLINE_PROBE_TIMEOUT": "60", **(env or {})}
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    done = subprocess.run(command, env=full, cwd=cwd, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def listed(*plugins: str, env: dict[str, str] | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    rows = run(LIST.format(), *plugins, env=env)["result"]
    return {(row["name"], row["distribution"]): row for row in rows}


def test_c69_cpu_works_without_any_device_library() -> None:
    found = run(LOAD.format("'cpu'"))
    assert found["result"] == "cpu"
    assert not {"torch", "paddle", "cuda", "triton"} & set(found["modules"])


def test_c72_auto_names_a_broken_plugin_and_takes_cpu() -> None:
    found = run(LOAD.format(""), "broken_import")
    assert found["result"] == "cpu"
    assert len(found["warnings"]) == 1
    for part in ("brokenimport", "broken-import 1.0", "x marks the broken driver"):
        assert part in found["warnings"][0]


def test_c72_a_broken_plugin_asked_for_raises_with_its_cause() -> None:
    found = run(LOAD.format("'brokenimport'"), "broken_import")["result"]
    assert {"BackendUnavailable", "ImportError"} <= set(found["raised"])
    assert "x marks the broken driver" in found["cause"]


def test_c73_an_unknown_name_in_a_list_is_an_error_that_lists_what_exists() -> None:
    found = run(LOAD.format(""), "good_device", env={"SLOTLINE_BACKEND": "good,typo"})["result"]
    assert "ConfigError" in found["raised"]
    for part in ("'typo'", "SLOTLINE_BACKEND", "good", "cpu", "hostmem"):
        assert part in found["text"]


@pytest.mark.parametrize("value", [" good ,,", "GOOD", "good", ",good,good"])
def test_c73_spaces_case_and_empty_items_do_not_matter(value: str) -> None:
    assert run(LOAD.format(""), "good_device", env={"SLOTLINE_BACKEND": value})["result"] == "good"


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (None, "hostmem"),  # unset: the next source, the settings file
        ("", "good"),  # empty: auto
        ("   ", "good"),
        ("good", "good"),
        ("brokenimport,good", "good"),  # the first usable
        ("unknown", "ConfigError"),
    ],
)
def test_c74_unset_empty_one_several_unknown(value: str | None, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "slotline.toml").write_text('backend = "hostmem"\n')
    env = {} if value is None else {"SLOTLINE_BACKEND": value}
    found = run(LOAD.format(""), "good_device", "broken_import", env=env, cwd=tmp_path)["result"]
    assert found == outcome if isinstance(found, str) else outcome in found["raised"]


def test_c74_a_list_without_a_usable_one_says_why_for_each() -> None:
    env = {"SLOTLINE_BACKEND": "brokenimport,brokenprobe"}
    found = run(LOAD.format(""), "broken_import", "broken_probe", env=env)["result"]
    assert "BackendUnavailable" in found["raised"]
    assert "x marks the broken driver" in found["text"]
    assert "the driver answered nonsense" in found["text"]


@pytest.mark.parametrize(("plugins", "outcome"), [(["good_device"], "good"), ([], "cpu")])
def test_c76_auto_takes_the_accelerator_that_is_usable(plugins: list[str], outcome: str) -> None:
    found = run(LOAD.format(""), *plugins)
    assert (found["result"], found["warnings"]) == (outcome, [])


def test_c76_two_of_equal_priority_are_an_error_that_names_the_setting() -> None:
    found = run(LOAD.format(""), "good_device", "second_device")["result"]
    assert "ConfigError" in found["raised"]
    for part in ("good", "second", "SLOTLINE_BACKEND"):
        assert part in found["text"]


def test_c77_a_broken_plugin_is_listed_with_its_reason() -> None:
    row = listed("broken_import")["brokenimport", "broken-import 1.0"]
    assert not row["usable"]
    assert "x marks the broken driver" in row["reason"]


def test_c77_a_reserved_name_is_refused_and_ours_stays() -> None:
    rows = listed("name_thief")
    assert rows["cpu", "slotline 0.1.0"]["usable"]
    assert "reserved" in rows["cpu", "name-thief 1.0"]["reason"]
    found = run("type(sl.load_backend('cpu')).__module__", "name_thief")
    assert found["result"] == "slotline.backends.cpu"
    assert "name_thief" not in found["modules"]


def test_c79_a_good_plugin_is_used_beside_a_bad_one_which_is_reported_once() -> None:
    found = run(LOAD.format(""), "good_device", "broken_probe", "crashing_probe")
    assert found["result"] == "good"
    assert len(found["warnings"]) == 1
    assert "the driver answered nonsense" in found["warnings"][0]


def test_c79_a_bad_plugin_asked_for_is_an_error() -> None:
    found = run(LOAD.format("'brokenprobe'"), "good_device", "broken_probe")["result"]
    assert "BackendUnavailable" in found["raised"]
    assert "RuntimeError('the driver answered nonsense')" in found["cause"]


def test_c79_explicit_cpu_imports_no_plugin() -> None:
    found = run(LOAD.format("'cpu'"), "good_device", "broken_import")
    assert not {"good_device", "hostmem", "broken_import"} & set(found["modules"])


def test_c80_a_device_that_is_asked_for_and_unusable_raises_and_auto_falls_back_with_one_warning() -> None:
    named = run(LOAD.format("'brokenprobe'"), "broken_probe")["result"]
    assert "BackendUnavailable" in named["raised"]
    found = run(LOAD.format("'auto'"), "broken_probe")
    assert found["result"] == "cpu"
    assert len(found["warnings"]) == 1
    assert not listed("broken_probe")["brokenprobe", "broken-probe 1.0"]["usable"]


@pytest.mark.parametrize("order", [("twin_one", "twin_two"), ("twin_two", "twin_one")])
def test_c81_two_distributions_with_one_name_are_an_error_with_both_origins(order: tuple[str, str]) -> None:
    found = run(LOAD.format("'twin'"), *order)["result"]
    assert "BackendUnavailable" in found["raised"]
    assert "twin-one 1.0 and twin-two 1.0" in found["text"]


def test_c81_auto_takes_neither_imports_neither_and_says_so_once() -> None:
    found = run(LOAD.format(""), "twin_two", "twin_one")
    assert found["result"] == "cpu"
    assert len(found["warnings"]) == 1
    assert "twin-one 1.0 and twin-two 1.0" in found["warnings"][0]
    assert not {"twin_one", "twin_two"} & set(found["modules"])


def test_c81_one_distribution_seen_twice_counts_once() -> None:
    assert run(LOAD.format("'good'"), "good_device", "good_device")["result"] == "good"
    assert len([name for name, _ in listed("good_device", "good_device") if name == "good"]) == 1


@pytest.mark.parametrize("order", list(itertools.permutations(["good_device", "kunlun_like", "broken_probe"])))
def test_c83_the_declared_priority_decides_whatever_the_order(order: tuple[str, ...]) -> None:
    assert run(LOAD.format(""), *order)["result"] == "kunlunlike"


def test_b5_a_device_that_its_probe_found_to_be_no_accelerator_is_taken_by_name_only() -> None:
    assert run(LOAD.format(""), "good_device", "no_accelerator")["result"] == "good"
    found = run(LOAD.format(""), "no_accelerator")
    assert (found["result"], found["warnings"]) == ("cpu", [])
    assert run(LOAD.format("'noaccelerator'"), "no_accelerator")["result"] == "noaccelerator"


def test_b3_a_probe_that_hangs_is_a_verdict() -> None:
    # The limit holds for the healthy ones too, so on a busy machine nothing is said of them here.
    rows = listed("hanging_probe", env={"SLOTLINE_PROBE_TIMEOUT": "3"})
    assert not rows["hanging", "hanging-probe 1.0"]["usable"]
    assert "more than 3 s" in rows["hanging", "hanging-probe 1.0"]["reason"]


def test_b3_a_probe_that_crashes_is_a_verdict_and_takes_nothing_down() -> None:
    rows = listed("crashing_probe")
    assert "signal 6" in rows["crashing", "crashing-probe 1.0"]["reason"]
    assert rows["cpu", "slotline 0.1.0"]["usable"]


def test_b7_a_missing_optional_package_is_a_line_and_no_warning() -> None:
    row = listed("missing_package")["missingpackage", "missing-package 1.0"]
    assert "package_that_nobody_has" in row["reason"]
    found = run(LOAD.format(""), "missing_package")
    assert (found["result"], found["warnings"]) == ("cpu", [])


def test_b7_a_hook_with_wrong_arguments_is_named_with_its_signature() -> None:
    found = run(LOAD.format("'wrongtypes'"), "wrong_types")["result"]
    for part in ("_write(self, tensor)", "offset", "wrong-types 1.0"):
        assert part in found["text"]


def test_c_plugins_that_are_not_allowed_are_never_imported() -> None:
    env = {"SLOTLINE_ALLOWED_PLUGINS": ""}
    found = run(LOAD.format(""), "good_device", env=env)
    assert (found["result"], found["warnings"]) == ("cpu", [])
    assert "good_device" not in found["modules"]
    named = run(LOAD.format("'good'"), "good_device", env=env)["result"]
    assert "SLOTLINE_ALLOWED_PLUGINS" in named["text"]
    assert run(LOAD.format(""), "good_device", env={"SLOTLINE_ALLOWED_PLUGINS": "good"})["result"] == "good"


def test_b2_listing_names_imports_nothing() -> None:
    body = "__import__('slotline.core.registry', fromlist=['x']).backend_names()"
    found = run(body, "good_device", "broken_import")
    assert {"cpu", "good", "brokenimport", "hostmem"} <= set(found["result"])
    assert not {"good_device", "broken_import", "slotline.backends.cpu"} & set(found["modules"])
