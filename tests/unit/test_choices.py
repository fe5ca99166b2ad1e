"""What a backend never has is refused where it is asked for, and an unknown name gets a hint (rules B4, B6, C)."""

from __future__ import annotations

from typing import Any

import pytest

import slotline as sl

Cpu: Any = type(sl.load_backend("cpu"))


def test_c_a_framework_that_the_backend_lacks_is_both_kinds_of_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "frameworks", ("numpy",))
    with pytest.raises(sl.ConfigError, match=r"argument framework.*'paddle', allowed: numpy") as caught:
        sl.load_backend("cpu", framework="paddle")
    assert isinstance(caught.value, sl.BackendUnavailable)


@pytest.mark.parametrize("name", ["cpu", "sim"])
@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"vendor": "intel"}, "has no vendor 'intel', allowed: none, leave it out"),
        ({"device": 3}, "has no device 3, allowed: 0"),
    ],
    ids=["vendor", "device"],
)
def test_c_a_vendor_or_a_device_that_the_backend_lacks_is_both_kinds_of_error(
    name: str, choice: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key, value), found = next(iter(choice.items())), type(sl.load_backend(name, device=0))
    with pytest.raises(sl.ConfigError, match=rf"argument {key}: backend {name!r} of slotline .* {says}") as caught:
        sl.load_backend(name, **choice)
    assert isinstance(caught.value, sl.BackendUnavailable)
    assert found.probe(**choice).reason == f"backend {name!r} {says}"
    with pytest.raises(sl.BackendUnavailable, match=says):
        found(**choice)
    monkeypatch.setenv(f"SLOTLINE_{key.upper()}", str(value))
    with pytest.raises(sl.ConfigError, match=f"SLOTLINE_{key.upper()}: .*{says}"):
        sl.load_backend(name)


def test_c_a_backend_with_several_devices_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "device_count", 4)
    assert sl.load_backend("cpu", device=3).device == 3
    with pytest.raises(sl.ConfigError, match="has no device 4, allowed: 0 to 3"):
        sl.load_backend("cpu", device=4)


def test_b6_a_backend_of_one_maker_is_asked_for_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "vendor", "intel")
    assert sl.load_backend("cpu", vendor="intel").vendor == "intel"
    with pytest.raises(sl.ConfigError, match="has no vendor 'kunlun', allowed: intel"):
        sl.load_backend("cpu", vendor="kunlun")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu", "unknown backend 'gpu'; did you mean 'cuda'? Installed: cpu, "),
        ("NVIDIA", "unknown backend 'nvidia'; did you mean 'cuda'? Installed: "),
        ("intel", "unknown backend 'intel'; did you mean 'xpu' with vendor 'intel' (SLOTLINE_VENDOR)? Installed: "),
        ("kunlun", "unknown backend 'kunlun'; did you mean 'xpu' with vendor 'kunlun' (SLOTLINE_VENDOR)? Installed: "),
        ("cdua", "unknown backend 'cdua'; did you mean 'cuda'? Installed: "),
        ("abacus", "unknown backend 'abacus'. Installed: "),
    ],
)
def test_c_an_unknown_name_comes_with_the_nearest_known(name: str, hint: str) -> None:
    with pytest.raises(sl.ConfigError) as caught:
        sl.load_backend(name)
    assert hint in str(caught.value)
