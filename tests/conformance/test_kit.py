"""The kit's own promises: known failures, a missing fixture, rules that exist (B12)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slotline.testing import conformance
from slotline.testing.conformance import RULES, BackendConformance, rule


def rules_by_test() -> dict[str, tuple[str, ...]]:
    found = {n: getattr(BackendConformance, n) for n in dir(BackendConformance) if n.startswith("test_")}
    return {name: getattr(test, "conformance_rules", ()) for name, test in found.items()}


def test_every_test_names_its_rules_and_every_rule_has_a_test() -> None:
    named = rules_by_test()
    assert not [name for name, rules in named.items() if not rules]
    assert {r for rules in named.values() for r in rules} == set(RULES)


def test_a_known_failure_that_names_no_test_is_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="has no test 'test_c99'"):
        type("Mine", (BackendConformance,), {"known_failures": {"test_c99": "why"}})
    with pytest.raises(TypeError, match="needed: the reason"):
        type("Mine", (BackendConformance,), {"known_failures": {"test_c11_a_write_moves_nothing": " "}})


def test_an_unknown_rule_is_an_error_when_the_test_is_made() -> None:
    with pytest.raises(ValueError, match="unknown rule 'W99'"):
        rule("W99")


def test_asserts_of_the_kit_are_rewritten() -> None:
    """Or plugin authors would see bare AssertionErrors."""
    folder = Path(str(conformance.__file__)).parent
    parts = {p.stem for p in folder.glob("*.py")} - {"__init__", "test_conformance"}
    assert parts == set(conformance._PARTS)


def test_the_reference_does_not_use_what_it_is_compared_with() -> None:
    """It may use the nouns (layouts, tasks, segments), never who plans, packs or applies."""
    folder = Path(str(conformance.__file__)).parents[1]
    allowed = {"layout", "field", "tasks", "config", "sampling", "segments", "standard", "batch"}
    for path in folder.glob("reference*.py"):
        used = set(re.findall(r"slotline\.core\.(\w+)", path.read_text()))
        assert used <= allowed | {"errors"}, f"{path.name} uses {used - allowed}"
