"""Step functions on a device with streams and without an array namespace: by copies to the host and back (rule B11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated import simulated

from slotline.device import DeviceTensors, StreamedBackend


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated device whose tensors have no array namespace."""
    backend = simulated()
    kind = type(backend)
    monkeypatch.setattr(kind, "abilities", replace(kind.abilities, array_namespace=False))
    monkeypatch.setattr(kind, "_launch", StreamedBackend._launch)
    return backend


def test_b11_what_was_written_back_is_there_once_the_event_has_passed(device: Any) -> None:
    tensors = device.empty([("a", (4,), "int64"), ("b", (4,), "int64")])
    device.async_set_value(tensors["a"], [1, 2, 3, 4])

    def step(reads: Any, writes: Any) -> None:
        writes["b"][...] = reads["a"] * 2

    event = device.launch(step, {"a": tensors["a"]}, {"b": tensors["b"]}, fills=("b",))
    assert not event.is_done  # the copy back is only queued
    event.sync()
    assert np.array_equal(tensors["b"].numpy(), [2, 4, 6, 8])  # which looks without waiting: the detector would mind


def test_b11_tensors_without_a_namespace_say_so(device: Any) -> None:
    with pytest.raises(NotImplementedError, match="has no array namespace; step functions run on the host"):
        DeviceTensors.namespace(device.tensors)
