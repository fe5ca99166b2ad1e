"""Stream handles in every form (rule B9)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.core.streams import stream_handle


class Int:
    def __int__(self) -> int:
        return 7


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 7)


class Pair:
    __cuda_stream__ = (0, 7)


class OfTorch:
    cuda_stream = 7
    stream_id = 3  # another number of the same object


class OfCupy:
    ptr = 7


class OfCtypes:
    value = 7


FORMS = {
    "int": 7,
    "numpy": np.int64(7),
    "unsigned": np.uint64(7),
    "__int__": Int(),
    "__cuda_stream__ method": Protocol(),
    "__cuda_stream__ pair": Pair(),
    "cuda_stream": OfTorch(),
    "ptr": OfCupy(),
    "value": OfCtypes(),
    "ctypes": ctypes.c_void_p(7),
}


@pytest.mark.parametrize("form", FORMS)
def test_b9_c67_every_form_gives_the_same_handle(form: str) -> None:
    assert stream_handle(FORMS[form]) == 7


def test_b9_none_is_the_current_stream_and_a_null_pointer_the_default_one() -> None:
    assert stream_handle(None) is None
    assert stream_handle(ctypes.c_void_p(0)) == stream_handle(0) == 0


@pytest.mark.parametrize(
    "wrong",
    [True, np.True_, "7", b"7", 7.0, np.float64(7), object(), [7], np.array([7])],
    ids=lambda w: type(w).__name__,
)
def test_b9_anything_else_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match="allowed: a handle as a number"):
        stream_handle(wrong)


def test_b9_a_handle_is_not_negative() -> None:
    with pytest.raises(ValueError, match="stream is -1"):
        stream_handle(-1)


@pytest.mark.parametrize("form", FORMS)
def test_b9_a_device_without_streams_takes_every_form_and_refuses_the_same(form: str) -> None:
    target = np.zeros(4, np.int64)
    backend = sl.load_backend("cpu")
    backend.async_set_value(target, [1, 2, 3, 4], stream=FORMS[form])
    assert target.tolist() == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="stream is 'x'"):
        backend.async_set_value(target, 0, stream="x")
    assert target.tolist() == [1, 2, 3, 4]
