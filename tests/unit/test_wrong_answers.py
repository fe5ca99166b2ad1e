"""Plugins that answer wrongly, when they are loaded or while they are in use (rules B3 to B5, B7).

Each test runs in a child process, which sees the distributions that it names.
"""

from __future__ import annotations

from typing import Any

import pytest
from plugged import child

import slotline as sl
from slotline.core.discovery import Plugin
from slotline.core.loading import interface_problem
from slotline.core.streamed import StreamedBackend


class TestWrongAnswers:
    """B7 at run time: what a hook gives back is checked; the error names the method and what was needed."""

    @pytest.mark.parametrize(
        ("hook", "wrong", "call", "says"),
        [
            ("_allocate", "[]", "new", "returned 0 tensors, needed: a list of"),
            ("_allocate", "iter(())", "new", "returned tuple_iterator, needed: a list of"),
            ("_inspect", "(4,)", "new", "returned tuple, needed: a slotline.TensorInfo, or None"),
            ("_inspect", "info(shape=[4])", "new", "a TensorInfo with shape [4], needed: a tuple of whole numbers"),
            ("_inspect", "info(dtype='i4')", "new", "with dtype 'i4', needed: one of bool"),
            ("_inspect", "info(strides=(1, 2))", "new", "1 axes and 2 strides, needed: a stride for each axis"),
            ("_inspect", "info(pointer=None)", "new", "with pointer None, needed: a whole number"),
            ("_read", "b'ab'", "read", "returned 2 bytes, needed: "),
            ("_read", "[1, 2]", "read", "returned list, needed: "),
            ("_set", "None", "write", "returned NoneType, needed: a slotline.Event"),
            ("_apply", "None", "insert", "returned NoneType, needed: a slotline.Event"),
            ("_launch", "7", "insert_and_step", "returned int, needed: a slotline.Event"),
            ("_download", "np.zeros(3)", "fetch", "returned ndarray, needed: a slotline.Download"),
        ],
    )
    def test_b7_an_answer_of_a_wrong_type(self, hook: str, wrong: str, call: str, says: str) -> None:
        kind, text, _ = child(
            f"""
def info(**changes):
    right = dict(shape=(4,), strides=(4,), dtype="int32", place="here", pointer=64)
    return sl.TensorInfo(**{{**right, **changes}})

backend = sl.load_backend("wronganswers")
batch = sl.SlotBatch(layout, backend)
calls = {{
    "new": lambda: sl.SlotBatch(layout, backend),
    "read": lambda: backend.read(batch["top_k"]),
    "write": lambda: backend.async_set_value(batch["top_k"], 1),
    "insert": lambda: sl.insert_tasks(batch, [prefill("a")]),
    "insert_and_step": lambda: (sl.insert_tasks(batch, [prefill("a")]), sl.prepare_step(batch)),
    "fetch": lambda: backend.download(batch["top_k"]),
}}
type(backend).wrong = {{{hook!r}: {wrong}}}
tell(outcome(calls[{call!r}]))
""",
            "wrong_answers",
        )
        assert kind == "DeviceError"
        assert text.startswith("wronganswers: ")
        assert f"Backend.{hook} returned " in text
        assert says in text

    def test_b3_b4_a_probe_that_answers_with_a_truth_value(self) -> None:
        said = child("tell(outcome(lambda: sl.load_backend('wrongprobe')))", "wrong_probe")
        assert said[0] == "BackendUnavailable"
        for part in ("wrong-probe 1.0", "Backend._probe returned bool, needed: slotline.Probe"):
            assert part in said[1]
        row = child("tell([b.reason for b in sl.list_backends() if b.name == 'wrongprobe'])", "wrong_probe")
        assert "_probe returned bool" in row[0]

    def test_b5_a_rank_that_is_no_number_is_a_verdict_and_auto_goes_on(self) -> None:
        code = "import warnings; warnings.simplefilter('ignore')\n"
        found = child(f"{code}tell([sl.load_backend().name, [b.reason for b in sl.list_backends()]])", "odd_rank")
        assert found[0] == "cpu"
        assert any("Backend.rank returned 'high', needed: a whole number or None" in reason for reason in found[1])

    def test_b4_an_object_whose_base_class_never_began(self) -> None:
        said = child("tell(outcome(lambda: sl.load_backend('forgetsinit')))", "forgets_init")
        assert said[0] == "BrokenPlugin"
        assert "forgets-init 1.0: Backend.__init__ must call super().__init__(**options) first" in said[1]


class TestAtLoading:
    """B7: methods that cannot be what the interface says, named with their signature."""

    @pytest.mark.parametrize(
        ("members", "says"),
        [
            ({"vendor": 3}, "vendor is 3, needed: a name or None"),
            ({"__init__": lambda self: None}, "__init__(self) cannot be called as __init__(self, *, framework"),
            ({"rank": lambda: 1}, "rank() cannot be called as rank("),
            ({"apply": lambda self, packet: None}, "apply(self, packet) cannot be called as apply(self, packet"),
            ({"read": lambda self, tensor, operation, stats: None}, "read(self, tensor, operation, stats) cannot"),
            ({"read": lambda self, tensor, *more, **named: None}, ""),
        ],
    )
    def test_b7_a_method_that_cannot_be_called(self, members: dict[str, Any], says: str) -> None:
        problem = self.problem(members)
        assert (says in problem) if says else not problem

    def test_b7_a_method_that_runs_later_or_never(self) -> None:
        async def write(self: Any, tensor: Any, offset: int, data: Any) -> None: ...

        def read(self: Any, tensor: Any, offset: int, nbytes: int) -> Any:
            yield b""

        assert "_write is a coroutine function, needed: a plain method _write(self" in self.problem({"_write": write})
        assert "_read is a generator, needed: a plain method _read(self" in self.problem({"_read": read})

    def test_b4_a_part_of_a_device_with_streams_that_is_something_else(self) -> None:
        sim: Any = sl.load_backend("sim")
        with pytest.raises(TypeError, match=r"SimBackend.start was given dict, needed: a subclass of .*DeviceTensors"):
            StreamedBackend.start(sim, sim.runtime, {}, sim.applier)  # type: ignore[arg-type]

    @staticmethod
    def problem(members: dict[str, Any]) -> str:
        found = type("Mine", (type(sl.load_backend("cpu")),), {"name": "mine", **members})
        return interface_problem(Plugin("mine", "mine:Mine", "some-dist", "2.1"), found)
